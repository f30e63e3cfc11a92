// Sends numbered messages with the SDK's defaults until its input ends. Prints one JSON line for
// each send. The arguments are the queue and the beginning of every message's text.
//
// In turn: one message with an id of its own, one without, a batch with ids, a batch without.

import { ServiceBusClient, delay } from "@azure/service-bus";

const IN_BATCH = 3;
const PAUSE_MS = 50;
const [queue, name] = process.argv.slice(2);

let stopping = false;
process.stdin.on("end", () => (stopping = true)).resume();

const client = new ServiceBusClient(process.env.SERVICEBUS_CONNECTION_STRING);
const sender = client.createSender(queue);
let number = 0;

function message(withId) {
  const body = `${name}-${number++}`;
  return withId ? { body, messageId: body } : { body };
}

async function send(messages, isBatch) {
  if (!isBatch) return sender.sendMessages(messages[0]);
  const batch = await sender.createMessageBatch();
  for (const each of messages) batch.tryAddMessage(each);
  return sender.sendMessages(batch);
}

for (let turn = 0; !stopping; turn++) {
  const withIds = turn % 2 === 0;
  const isBatch = turn % 4 >= 2;
  const messages = Array.from({ length: isBatch ? IN_BATCH : 1 }, () => message(withIds));
  const line = { texts: messages.map((each) => each.body), has_ids: withIds, began_ms: Date.now() };
  try {
    await send(messages, isBatch);
  } catch (error) {
    line.error = `${error.name} ${error.code ?? ""}: ${error.message}`;
  }
  console.log(JSON.stringify({ ...line, ended_ms: Date.now() }));
  await delay(PAUSE_MS);
}
await client.close();
