// The senders of a drill through a gateway: the official SDK with its own retries, no Twinbus.
//
// The plan comes as JSON on standard input. Standard output has one line of JSON for the start, and
// one for each send that has ended, with its error if it has failed.

import { text } from "node:stream/consumers";
import { setTimeout as pause } from "node:timers/promises";
import { ServiceBusClient } from "@azure/service-bus";

const plan = JSON.parse(await text(process.stdin));
const began = Date.now();

function say(line) {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

function message(entity, number) {
  const body = { entity: entity.path, number, padding: plan.padding };
  return {
    body: Buffer.from(JSON.stringify(body)),
    messageId: `${entity.path}-${String(number).padStart(6, "0")}`,
    sessionId: entity.sessions[Math.floor(Math.random() * entity.sessions.length)],
    contentType: "application/json",
  };
}

async function sendTo(client, entity, numbers) {
  const sender = client.createSender(entity.path);
  for (const number of numbers) {
    await pause(Math.max(0, began + (1000 * number) / plan.rate - Date.now()));
    try {
      await sender.sendMessages(message(entity, number));
      say({ number });
    } catch (error) {
      say({ number, error: String(error?.message ?? error) });
    }
  }
  await sender.close();
}

async function run(numbers) {
  const client = new ServiceBusClient(plan.connectionString, {
    retryOptions: { timeoutInMs: plan.timeoutMs },
  });
  // A sender that waits for one entity goes on with the others.
  const count = plan.entities.length;
  await Promise.all(
    plan.entities.map((entity, place) =>
      sendTo(client, entity, numbers.filter((_, index) => index % count === place)),
    ),
  );
  await client.close();
}

say({ beganMs: began });
await Promise.all(plan.shares.map(run));
