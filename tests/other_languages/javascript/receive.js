// Receives and completes messages with the SDK's defaults until its input ends. Prints one JSON line
// for each. The argument is a queue, or TOPIC/subscriptions/NAME. An error is that of the
// completion, or without a text of the receive.

import { ServiceBusClient, delay } from "@azure/service-bus";

const AT_ONCE = 10;
const WAIT_MS = 2000;
const AFTER_ERROR_MS = 200;
const [entity] = process.argv.slice(2);

let stopping = false;
process.stdin.on("end", () => (stopping = true)).resume();

const client = new ServiceBusClient(process.env.SERVICEBUS_CONNECTION_STRING);
const receiver = client.createReceiver(...entity.split("/subscriptions/"));

const said = (error) => `${error.name} ${error.code ?? ""}: ${error.message}`;
const print = (line) => console.log(JSON.stringify({ text: "", id: "", number: 0, ...line }));

while (!stopping) {
  let messages = [];
  try {
    messages = await receiver.receiveMessages(AT_ONCE, { maxWaitTimeInMs: WAIT_MS });
  } catch (error) {
    print({ at_ms: Date.now(), error: said(error) });
    await delay(AFTER_ERROR_MS);
  }
  const now = Date.now();
  for (const message of messages) {
    const line = {
      // A text that another SDK has sent is not JSON, and is given as bytes.
      text: Buffer.isBuffer(message.body) ? message.body.toString() : message.body,
      id: String(message.messageId),
      // As a text: it may be beyond what a number can hold.
      number: message.sequenceNumber.toString(),
      at_ms: now,
    };
    try {
      await receiver.completeMessage(message);
    } catch (error) {
      line.error = said(error);
    }
    print(line);
  }
}
await client.close();
