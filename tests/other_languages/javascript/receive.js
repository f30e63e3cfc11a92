// Receives and completes messages with the SDK's defaults until its input ends. Prints one JSON line
// for each message before it completes it, and one when it has. The argument is a queue, or
// TOPIC/subscriptions/NAME. An error is that of the completion, or without a number of the receive.

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
const print = (line) => console.log(JSON.stringify(line));

while (!stopping) {
  let messages = [];
  try {
    messages = await receiver.receiveMessages(AT_ONCE, { maxWaitTimeInMs: WAIT_MS });
  } catch (error) {
    print({ at_ms: Date.now(), error: said(error) });
    await delay(AFTER_ERROR_MS);
  }
  const at_ms = Date.now();
  for (const message of messages) {
    // As a text: it may be beyond what a number can hold.
    const number = message.sequenceNumber.toString();
    // A text that another SDK has sent is not JSON, and is given as bytes.
    const text = Buffer.isBuffer(message.body) ? message.body.toString() : message.body;
    print({ text, id: String(message.messageId), number, at_ms });
    try {
      await receiver.completeMessage(message);
      print({ number, settled: true });
    } catch (error) {
      print({ number, settled: true, error: said(error) });
    }
  }
}
await client.close();
