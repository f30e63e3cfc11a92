// A tour of the JavaScript SDK against a broker. Prints one JSON line for each step.
//
// The connection string is in SERVICEBUS_CONNECTION_STRING. With UseDevelopmentEmulator=true the
// tour uses no TLS; otherwise NODE_EXTRA_CA_CERTS names the authority to trust.

import assert from "node:assert/strict";
import {
  ServiceBusAdministrationClient,
  ServiceBusClient,
  delay,
  isServiceBusError,
} from "@azure/service-bus";
import WebSocket from "ws";

const TEXT = process.env.SERVICEBUS_CONNECTION_STRING;
const PLAIN = /UseDevelopmentEmulator=true/i.test(TEXT);
const WAIT = { maxWaitTimeInMs: 20_000 };
// Returned by a receiver that must stay empty.
const BRIEF = { maxWaitTimeInMs: 500 };
// The SDK wraps the errors of several attempts into one without a code.
const NO_RETRY = { retryOptions: { maxRetries: 0, timeoutInMs: 20_000 } };

const admin = new ServiceBusAdministrationClient(TEXT);
if (PLAIN) {
  // The administration client of the SDK always uses https.
  admin.pipeline.addPolicy({
    name: "withoutTls",
    sendRequest(request, next) {
      request.url = request.url.replace(/^https:/, "http:");
      request.allowInsecureConnection = true;
      return next(request);
    },
  });
}
const client = new ServiceBusClient(TEXT, NO_RETRY);

async function queue(name, options = {}) {
  await admin.createQueue(name, options);
  return { name, sender: client.createSender(name), receiver: client.createReceiver(name) };
}

async function one(receiver) {
  const [message] = await receiver.receiveMessages(1, WAIT);
  assert.ok(message, "no message arrived");
  return message;
}

async function receive(receiver, count) {
  const messages = [];
  while (messages.length < count) {
    const some = await receiver.receiveMessages(count - messages.length, WAIT);
    assert.notEqual(some.length, 0, `only ${messages.length} of ${count} messages arrived`);
    messages.push(...some);
  }
  return messages;
}

async function staysEmpty(receiver) {
  assert.deepEqual(await receiver.receiveMessages(1, BRIEF), []);
}

async function all(iterator) {
  const found = [];
  for await (const each of iterator) found.push(each);
  return found;
}

async function isMissing(call) {
  await assert.rejects(call(), (error) => {
    assert.ok(isServiceBusError(error), `${error}`);
    assert.equal(error.code, "MessagingEntityNotFound", `${call}: ${error.message}`);
    return true;
  });
}

const bodies = (messages) => messages.map((each) => each.body);

const STEPS = {
  "namespace properties": async () => {
    assert.equal((await admin.getNamespaceProperties()).name, "contoso");
  },

  "queue administration": async () => {
    const made = await admin.createQueue("admin-queue", {
      lockDuration: "PT30S",
      maxDeliveryCount: 7,
      requiresSession: true,
      deadLetteringOnMessageExpiration: true,
      defaultMessageTimeToLive: "P1D",
      userMetadata: "ü <&>",
    });
    const found = await admin.getQueue("admin-queue");
    for (const each of [made, found]) {
      assert.equal(each.lockDuration, "PT30S");
      assert.equal(each.maxDeliveryCount, 7);
      assert.equal(each.requiresSession, true);
      assert.equal(each.defaultMessageTimeToLive, "P1D");
      assert.equal(each.userMetadata, "ü <&>");
    }
    const { _response, ...changed } = found;
    changed.maxDeliveryCount = 9;
    assert.equal((await admin.updateQueue(changed)).maxDeliveryCount, 9);
    assert.equal(await admin.queueExists("admin-queue"), true);
    assert.ok((await all(admin.listQueues())).some((each) => each.name === "admin-queue"));
    await admin.deleteQueue("admin-queue");
    assert.equal(await admin.queueExists("admin-queue"), false);
  },

  "topic administration": async () => {
    await admin.createTopic("admin-topic", { userMetadata: "made" });
    assert.equal((await admin.getTopic("admin-topic")).userMetadata, "made");
    await admin.createSubscription("admin-topic", "audit", { maxDeliveryCount: 3 });
    const { _response, ...changed } = await admin.getSubscription("admin-topic", "audit");
    assert.equal(changed.maxDeliveryCount, 3);
    changed.maxDeliveryCount = 4;
    assert.equal((await admin.updateSubscription(changed)).maxDeliveryCount, 4);
    await admin.createRule("admin-topic", "audit", "dear", { sqlExpression: "price > 100" });
    await admin.createRule("admin-topic", "audit", "red", {
      correlationId: "red",
      applicationProperties: { size: 3 },
    });
    const rules = await all(admin.listRules("admin-topic", "audit"));
    assert.deepEqual(rules.map((each) => each.name).sort(), ["$Default", "dear", "red"]);
    const red = await admin.getRule("admin-topic", "audit", "red");
    assert.equal(red.filter.correlationId, "red");
    assert.deepEqual(red.filter.applicationProperties, { size: 3 });
    await admin.deleteRule("admin-topic", "audit", "dear");
    const runtime = await admin.getSubscriptionRuntimeProperties("admin-topic", "audit");
    assert.equal(runtime.totalMessageCount, 0);
    await admin.deleteSubscription("admin-topic", "audit");
    await admin.deleteTopic("admin-topic");
    assert.equal(await admin.topicExists("admin-topic"), false);
  },

  "administration errors": async () => {
    await admin.createQueue("twice");
    await assert.rejects(admin.createQueue("twice"), { code: "MessageEntityAlreadyExistsError" });
    await assert.rejects(admin.getQueue("nowhere"), { code: "MessageEntityNotFoundError" });
  },

  "runtime counts": async () => {
    const { sender, receiver } = await queue("counted");
    await sender.sendMessages([{ body: "dead" }, { body: "active" }]);
    await sender.scheduleMessages({ body: "later" }, new Date(Date.now() + 3_600_000));
    await receiver.deadLetterMessage(await one(receiver));
    const counts = await admin.getQueueRuntimeProperties("counted");
    assert.equal(counts.activeMessageCount, 1);
    assert.equal(counts.deadLetterMessageCount, 1);
    assert.equal(counts.scheduledMessageCount, 1);
    assert.equal(counts.totalMessageCount, 3);
  },

  "send and receive": async () => {
    const { sender, receiver } = await queue("plain");
    await sender.sendMessages({ body: "one" });
    await sender.sendMessages([{ body: "two" }, { body: { three: [3] } }]);
    const messages = await receive(receiver, 3);
    assert.deepEqual(bodies(messages), ["one", "two", { three: [3] }]);
    for (const message of messages) await receiver.completeMessage(message);
    await staysEmpty(receiver);
  },

  "message properties": async () => {
    const { sender, receiver } = await queue("properties");
    const sent = {
      body: Buffer.from([0, 255, 1]),
      messageId: "id-1",
      correlationId: "correlation-1",
      subject: "subject-1",
      contentType: "application/octet-stream",
      to: "to-1",
      replyTo: "reply-1",
      replyToSessionId: "reply-session-1",
      sessionId: "session-1",
      partitionKey: "session-1",
      timeToLive: 3_600_000,
      applicationProperties: { text: "ü", number: 42, real: 1.5, yes: true },
    };
    await sender.sendMessages(sent);
    const got = await one(receiver);
    for (const [name, value] of Object.entries(sent)) assert.deepEqual(got[name], value, name);
    assert.equal(got.deliveryCount, 0);
    assert.equal(got.state, "active");
    assert.ok(got.lockedUntilUtc > got.enqueuedTimeUtc);
    assert.ok(Math.abs(got.enqueuedTimeUtc - Date.now()) < 600_000);
    await receiver.completeMessage(got);
  },

  batch: async () => {
    const { sender, receiver } = await queue("batch");
    const batch = await sender.createMessageBatch();
    for (let number = 0; number < 50; number++) {
      assert.ok(batch.tryAddMessage({ body: number }));
    }
    await sender.sendMessages(batch);
    const messages = await receive(receiver, 50);
    assert.deepEqual(bodies(messages), [...Array(50).keys()]);
    const small = await sender.createMessageBatch({ maxSizeInBytes: 1_000 });
    assert.equal(small.tryAddMessage({ body: "x".repeat(2_000) }), false);
  },

  abandon: async () => {
    const { name, sender, receiver } = await queue("abandon", { maxDeliveryCount: 2 });
    await sender.sendMessages({ body: "again" });
    await receiver.abandonMessage(await one(receiver), { note: "first" });
    const second = await one(receiver);
    assert.equal(second.deliveryCount, 1);
    assert.equal(second.applicationProperties.note, "first");
    await receiver.abandonMessage(second);
    const dead = client.createReceiver(name, { subQueueType: "deadLetter" });
    assert.equal((await one(dead)).deadLetterReason, "MaxDeliveryCountExceeded");
  },

  "dead letter": async () => {
    const { name, sender, receiver } = await queue("dead-letter");
    await sender.sendMessages({ body: "bad" });
    await receiver.deadLetterMessage(await one(receiver), {
      deadLetterReason: "Malformed",
      deadLetterErrorDescription: "no amount",
      checked: true,
    });
    const dead = client.createReceiver(name, { subQueueType: "deadLetter" });
    const letter = await one(dead);
    assert.equal(letter.body, "bad");
    assert.equal(letter.deadLetterReason, "Malformed");
    assert.equal(letter.deadLetterErrorDescription, "no amount");
    assert.equal(letter.deadLetterSource, name);
    assert.equal(letter.applicationProperties.checked, true);
    await dead.completeMessage(letter);
    await staysEmpty(dead);
  },

  defer: async () => {
    const { sender, receiver } = await queue("defer");
    await sender.sendMessages({ body: "later" });
    const first = await one(receiver);
    await receiver.deferMessage(first);
    await staysEmpty(receiver);
    const [deferred] = await receiver.receiveDeferredMessages(first.sequenceNumber);
    assert.equal(deferred.body, "later");
    assert.equal(deferred.state, "deferred");
    await receiver.completeMessage(deferred);
    await assert.rejects(receiver.receiveDeferredMessages(first.sequenceNumber), {
      code: "MessageNotFound",
    });
  },

  "receive and delete": async () => {
    const { name, sender } = await queue("delete");
    await sender.sendMessages([{ body: "one" }, { body: "two" }]);
    const receiver = client.createReceiver(name, { receiveMode: "receiveAndDelete" });
    assert.deepEqual(bodies(await receive(receiver, 2)), ["one", "two"]);
    await receiver.close();
    assert.equal((await admin.getQueueRuntimeProperties(name)).totalMessageCount, 0);
  },

  "renew message lock": async () => {
    const { sender, receiver } = await queue("renew", { lockDuration: "PT10S" });
    await sender.sendMessages({ body: "long work" });
    const message = await one(receiver);
    const before = message.lockedUntilUtc;
    await delay(50);
    const after = await receiver.renewMessageLock(message);
    assert.ok(after > before, `${after} is not after ${before}`);
    await receiver.completeMessage(message);
  },

  peek: async () => {
    const { sender, receiver } = await queue("peek");
    await sender.sendMessages([{ body: 1 }, { body: 2 }, { body: 3 }]);
    const first = await receiver.peekMessages(2);
    assert.deepEqual(bodies(first), [1, 2]);
    assert.deepEqual(bodies(await receiver.peekMessages(2)), [3]);
    const from = { fromSequenceNumber: first[1].sequenceNumber };
    assert.deepEqual(bodies(await receiver.peekMessages(5, from)), [2, 3]);
    assert.deepEqual(bodies(await receive(receiver, 3)), [1, 2, 3]);
  },

  "schedule and cancel": async () => {
    const { sender, receiver } = await queue("schedule");
    const due = new Date(Date.now() + 3_600_000);
    const numbers = await sender.scheduleMessages([{ body: "a" }, { body: "b" }], due);
    const waiting = await receiver.peekMessages(5);
    assert.deepEqual(bodies(waiting), ["a", "b"]);
    assert.equal(waiting[0].state, "scheduled");
    assert.equal(waiting[0].scheduledEnqueueTimeUtc.getTime(), due.getTime());
    await sender.cancelScheduledMessages(numbers);
    const from = { fromSequenceNumber: waiting[0].sequenceNumber };
    assert.deepEqual(await receiver.peekMessages(5, from), []);
  },

  "scheduled message arrives": async () => {
    const { sender, receiver } = await queue("soon");
    const due = new Date(Date.now() + 1_000);
    await sender.scheduleMessages({ body: "now" }, due);
    const got = await one(receiver);
    assert.equal(got.body, "now");
    assert.ok(got.enqueuedTimeUtc >= due, `${got.enqueuedTimeUtc} is before ${due}`);
  },

  "topic with filters": async () => {
    await admin.createTopic("news");
    await admin.createSubscription("news", "all");
    const rule = (name, filter, action) => ({ defaultRuleOptions: { name, filter, action } });
    await admin.createSubscription(
      "news",
      "dear",
      rule("r", { sqlExpression: "price > 100" }, { sqlExpression: "SET seen = 'yes'" }),
    );
    await admin.createSubscription("news", "red", rule("r", { subject: "red" }));
    await client.createSender("news").sendMessages([
      { body: "cheap red", subject: "red", applicationProperties: { price: 1 } },
      { body: "dear blue", subject: "blue", applicationProperties: { price: 200 } },
    ]);
    const everything = client.createReceiver("news", "all");
    assert.deepEqual(bodies(await receive(everything, 2)), ["cheap red", "dear blue"]);
    const dear = client.createReceiver("news", "dear");
    const found = await one(dear);
    assert.equal(found.body, "dear blue");
    assert.equal(found.applicationProperties.seen, "yes");
    await dear.completeMessage(found);
    await staysEmpty(dear);
    assert.equal((await one(client.createReceiver("news", "red"))).body, "cheap red");
  },

  "session in order": async () => {
    await admin.createQueue("steps", { requiresSession: true });
    const sender = client.createSender("steps");
    for (const body of ["a1", "b1", "a2", "b2", "a3"]) {
      await sender.sendMessages({ body, sessionId: body[0] });
    }
    const session = await client.acceptSession("steps", "a");
    assert.equal(session.sessionId, "a");
    const messages = await receive(session, 3);
    assert.deepEqual(bodies(messages), ["a1", "a2", "a3"]);
    for (const message of messages) await session.completeMessage(message);
    await staysEmpty(session);
    await session.close();
  },

  "session state and lock": async () => {
    await admin.createQueue("stateful", { requiresSession: true });
    await client.createSender("stateful").sendMessages({ body: "x", sessionId: "s" });
    const session = await client.acceptSession("stateful", "s");
    assert.equal(await session.getSessionState(), null);
    await session.setSessionState({ step: 3 });
    assert.deepEqual(await session.getSessionState(), { step: 3 });
    const before = session.sessionLockedUntilUtc;
    await delay(50);
    assert.ok((await session.renewSessionLock()) > before);
    assert.deepEqual(bodies(await session.peekMessages(5)), ["x"]);
    await assert.rejects(
      new ServiceBusClient(TEXT, NO_RETRY).acceptSession("stateful", "s"),
      { code: "SessionCannotBeLocked" },
    );
    await session.close();
    const again = await client.acceptSession("stateful", "s");
    assert.deepEqual(await again.getSessionState(), { step: 3 });
    await again.close();
  },

  "next session": async () => {
    await admin.createQueue("any-session", { requiresSession: true });
    const sender = client.createSender("any-session");
    await sender.sendMessages([{ body: 1, sessionId: "one" }]);
    const session = await client.acceptNextSession("any-session");
    assert.equal(session.sessionId, "one");
    const message = await one(session);
    await session.completeMessage(message);
    await session.close();
  },

  processor: async () => {
    const { sender, receiver } = await queue("subscribed");
    const seen = [];
    let finish;
    const finished = new Promise((resolve, reject) => (finish = { resolve, reject }));
    const subscription = receiver.subscribe({
      processMessage: async (message) => {
        seen.push(message.body);
        if (seen.length === 10) finish.resolve();
      },
      processError: async ({ error }) => finish.reject(error),
    });
    for (let number = 0; number < 10; number++) await sender.sendMessages({ body: number });
    await finished;
    await subscription.close();
    await receiver.close();
    assert.deepEqual(seen, [...Array(10).keys()]);
    assert.equal((await admin.getQueueRuntimeProperties("subscribed")).totalMessageCount, 0);
  },

  "rules over AMQP": async () => {
    await admin.createTopic("ruled");
    await admin.createSubscription("ruled", "mine");
    const rules = client.createRuleManager("ruled", "mine");
    await rules.deleteRule("$Default");
    await rules.createRule("big", { sqlExpression: "size > 3" });
    await rules.createRule("green", { subject: "green" });
    const found = await all(rules.listRules());
    assert.deepEqual(found.map((each) => each.name).sort(), ["big", "green"]);
    await client.createSender("ruled").sendMessages([
      { body: "small", applicationProperties: { size: 1 } },
      { body: "big", applicationProperties: { size: 9 } },
    ]);
    const receiver = client.createReceiver("ruled", "mine");
    assert.equal((await one(receiver)).body, "big");
    await staysEmpty(receiver);
  },

  "missing entity": async () => {
    // With the SDK's own retries: this error must not be repeated.
    const patient = new ServiceBusClient(TEXT);
    await isMissing(() => patient.createSender("nowhere").sendMessages({ body: "x" }));
    await isMissing(() => patient.createReceiver("nowhere").receiveMessages(1, BRIEF));
    await isMissing(() => patient.createReceiver("nowhere").peekMessages(1));
    await patient.close();
  },

  "session of a missing entity": () => isMissing(() => client.acceptSession("nowhere", "s")),

  "message too large": async () => {
    const { name, receiver } = await queue("large");
    // With the SDK's own retries and time limit (60 s): this error must come at once.
    const patient = new ServiceBusClient(TEXT);
    const sender = patient.createSender(name);
    await sender.sendMessages({ body: "small" });
    // The broker reads the first to its end before it refuses it, and of the second only a part.
    for (const size of [300_000, 3_000_000]) {
      const began = Date.now();
      await assert.rejects(sender.sendMessages({ body: "x".repeat(size) }), (error) => {
        assert.ok(isServiceBusError(error), `${error}`);
        assert.equal(error.code, "MessageSizeExceeded", error.message);
        return true;
      });
      const took = Date.now() - began;
      assert.ok(took < 1_000, `the refusal took ${took} ms`);
    }
    await sender.sendMessages({ body: "after" });
    assert.deepEqual(bodies(await receive(receiver, 2)), ["small", "after"]);
    await patient.close();
  },

  "wrong key": async () => {
    await admin.createQueue("guarded");
    const text = TEXT.replace(/SharedAccessKey=[^;]*/, "SharedAccessKey=d3Jvbmc=");
    const stranger = new ServiceBusClient(text, NO_RETRY);
    await assert.rejects(stranger.createSender("guarded").sendMessages({ body: "x" }), {
      code: "UnauthorizedAccess",
    });
    await stranger.close();
  },

  websocket: async () => {
    await admin.createQueue("over-websocket");
    // Without TLS: the SDK always asks for wss.
    class PlainWebSocket extends WebSocket {
      constructor(url, ...rest) {
        super(url.replace(/^wss:/, "ws:"), ...rest);
      }
    }
    const over = new ServiceBusClient(TEXT, {
      ...NO_RETRY,
      webSocketOptions: { webSocket: PLAIN ? PlainWebSocket : WebSocket },
    });
    await over.createSender("over-websocket").sendMessages({ body: "hello" });
    const receiver = over.createReceiver("over-websocket");
    const message = await one(receiver);
    assert.equal(message.body, "hello");
    await receiver.completeMessage(message);
    await over.close();
  },
};

for (const [step, run] of Object.entries(STEPS)) {
  const began = Date.now();
  const result = { step };
  try {
    await run();
  } catch (error) {
    result.error = `${error.code ?? ""} ${error.stack ?? error}`.trim();
  }
  result.seconds = (Date.now() - began) / 1_000;
  console.log(JSON.stringify(result));
}
await client.close();
process.exit(0);
