import com.azure.core.util.BinaryData;
import com.azure.messaging.servicebus.ServiceBusFailureReason;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.models.ServiceBusMessageState;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.administration.models.CreateQueueOptions;
import com.azure.messaging.servicebus.models.AbandonOptions;
import com.azure.messaging.servicebus.models.CreateMessageBatchOptions;
import com.azure.messaging.servicebus.models.DeadLetterOptions;
import com.azure.messaging.servicebus.models.ServiceBusReceiveMode;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.time.temporal.ChronoUnit;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import java.util.stream.StreamSupport;

/** Steps on queues without sessions. */
record Queues(Tour tour) {
    interface OnQueue {
        void run(String name, ServiceBusSenderClient sender, ServiceBusReceiverClient receiver)
            throws Exception;
    }

    Map<String, Tour.Step> steps() {
        var plain = new CreateQueueOptions();
        var steps = new LinkedHashMap<String, Tour.Step>();
        steps.put("send and receive", on("plain", plain, this::sendAndReceive));
        steps.put("message properties", on("properties", plain, this::messageProperties));
        steps.put("batch", on("batch", plain, this::batch));
        var twice = new CreateQueueOptions().setMaxDeliveryCount(2);
        steps.put("abandon", on("abandon", twice, this::abandon));
        steps.put("dead letter", on("dead-letter", plain, this::deadLetter));
        steps.put("defer", on("defer", plain, this::defer));
        steps.put("receive and delete", on("delete", plain, this::receiveAndDelete));
        var brief = new CreateQueueOptions().setLockDuration(Duration.ofSeconds(10));
        steps.put("renew message lock", on("renew", brief, this::renewMessageLock));
        steps.put("peek", on("peek", plain, this::peek));
        steps.put("schedule and cancel", on("schedule", plain, this::scheduleAndCancel));
        steps.put("scheduled message arrives", on("soon", plain, this::scheduledMessageArrives));
        return steps;
    }

    /** The step with a queue of its own, a sender and a receiver. */
    private Tour.Step on(String name, CreateQueueOptions options, OnQueue step) {
        return () -> {
            tour.admin().createQueue(name, options);
            try (var sender = tour.sender(name); var receiver = tour.receiver(name)) {
                step.run(name, sender, receiver);
            }
        };
    }

    private void sendAndReceive(
        String name, ServiceBusSenderClient sender, ServiceBusReceiverClient receiver) {
        Tour.send(sender, "one");
        sender.sendMessages(List.of(new ServiceBusMessage("two"), new ServiceBusMessage("three")));
        var messages = Tour.receive(receiver, 3);
        Tour.equal("bodies", Tour.bodies(messages), List.of("one", "two", "three"));
        messages.forEach(receiver::complete);
        Tour.staysEmpty(receiver);
    }

    private void messageProperties(
        String name, ServiceBusSenderClient sender, ServiceBusReceiverClient receiver) {
        var body = new byte[] {0, (byte) 255, 1};
        Map<String, Object> properties = Map.of("text", "ü", "number", 42, "real", 1.5, "yes", true);
        var sent = new ServiceBusMessage(BinaryData.fromBytes(body))
            .setMessageId("id-1")
            .setCorrelationId("correlation-1")
            .setSubject("subject-1")
            .setContentType("application/octet-stream")
            .setTo("to-1")
            .setReplyTo("reply-1")
            .setReplyToSessionId("reply-session-1")
            .setSessionId("session-1")
            .setPartitionKey("session-1")
            .setTimeToLive(Duration.ofHours(1));
        sent.getApplicationProperties().putAll(properties);
        sender.sendMessage(sent);
        var got = Tour.one(receiver);
        Tour.holds("body", Arrays.equals(got.getBody().toBytes(), body));
        Tour.equal("application properties", got.getApplicationProperties(), properties);
        Tour.equal("message id", got.getMessageId(), "id-1");
        Tour.equal("correlation id", got.getCorrelationId(), "correlation-1");
        Tour.equal("subject", got.getSubject(), "subject-1");
        Tour.equal("content type", got.getContentType(), "application/octet-stream");
        Tour.equal("to", got.getTo(), "to-1");
        Tour.equal("reply to", got.getReplyTo(), "reply-1");
        Tour.equal("reply to session", got.getReplyToSessionId(), "reply-session-1");
        Tour.equal("session", got.getSessionId(), "session-1");
        Tour.equal("partition key", got.getPartitionKey(), "session-1");
        Tour.equal("time to live", got.getTimeToLive(), Duration.ofHours(1));
        Tour.equal("delivery count", got.getDeliveryCount(), 0L);
        Tour.equal("state", got.getState(), ServiceBusMessageState.ACTIVE);
        Tour.holds("lock after arrival", got.getLockedUntil().isAfter(got.getEnqueuedTime()));
        var age = Duration.between(got.getEnqueuedTime(), OffsetDateTime.now()).abs();
        Tour.holds("recent", age.toMinutes() < 10);
        receiver.complete(got);
    }

    private void batch(
        String name, ServiceBusSenderClient sender, ServiceBusReceiverClient receiver) {
        var wanted = IntStream.range(0, 50).mapToObj(Integer::toString).toList();
        var many = sender.createMessageBatch();
        wanted.forEach(each -> Tour.holds("added", many.tryAddMessage(new ServiceBusMessage(each))));
        sender.sendMessages(many);
        Tour.equal("bodies", Tour.bodies(Tour.receive(receiver, 50)), wanted);
        var small = sender.createMessageBatch(
            new CreateMessageBatchOptions().setMaximumSizeInBytes(1_000));
        var half = new ServiceBusMessage("x".repeat(600));
        Tour.equal("first", small.tryAddMessage(half), true);
        Tour.equal("second", small.tryAddMessage(half), false);
    }

    private void abandon(
        String name, ServiceBusSenderClient sender, ServiceBusReceiverClient receiver) {
        Tour.send(sender, "again");
        receiver.abandon(Tour.one(receiver),
            new AbandonOptions().setPropertiesToModify(Map.of("note", "first")));
        var second = Tour.one(receiver);
        Tour.equal("delivery count", second.getDeliveryCount(), 1L);
        Tour.equal("note", second.getApplicationProperties().get("note"), "first");
        receiver.abandon(second);
        try (var dead = tour.deadLetters(name)) {
            var reason = Tour.one(dead).getDeadLetterReason();
            Tour.equal("reason", reason, "MaxDeliveryCountExceeded");
        }
    }

    private void deadLetter(
        String name, ServiceBusSenderClient sender, ServiceBusReceiverClient receiver) {
        Tour.send(sender, "bad");
        receiver.deadLetter(Tour.one(receiver), new DeadLetterOptions()
            .setDeadLetterReason("Malformed")
            .setDeadLetterErrorDescription("no amount")
            .setPropertiesToModify(Map.of("checked", true)));
        try (var dead = tour.deadLetters(name)) {
            var letter = Tour.one(dead);
            Tour.equal("body", letter.getBody().toString(), "bad");
            Tour.equal("reason", letter.getDeadLetterReason(), "Malformed");
            Tour.equal("description", letter.getDeadLetterErrorDescription(), "no amount");
            Tour.equal("source", letter.getDeadLetterSource(), name);
            Tour.equal("property", letter.getApplicationProperties().get("checked"), true);
            dead.complete(letter);
            Tour.staysEmpty(dead);
        }
    }

    private void defer(
        String name, ServiceBusSenderClient sender, ServiceBusReceiverClient receiver) {
        Tour.send(sender, "later");
        var first = Tour.one(receiver);
        receiver.defer(first);
        Tour.staysEmpty(receiver);
        var deferred = receiver.receiveDeferredMessage(first.getSequenceNumber());
        Tour.equal("body", deferred.getBody().toString(), "later");
        Tour.equal("state", deferred.getState(), ServiceBusMessageState.DEFERRED);
        receiver.complete(deferred);
        // This SDK ignores that the message was not found, and has no result then.
        Tour.fails(ServiceBusFailureReason.GENERAL_ERROR,
            () -> receiver.receiveDeferredMessage(first.getSequenceNumber()));
    }

    private void receiveAndDelete(
        String name, ServiceBusSenderClient sender, ServiceBusReceiverClient unused) {
        Tour.send(sender, "one", "two");
        try (var receiver = tour.builder().receiver().queueName(name)
            .receiveMode(ServiceBusReceiveMode.RECEIVE_AND_DELETE).buildClient()) {
            Tour.equal("bodies", Tour.bodies(Tour.receive(receiver, 2)), List.of("one", "two"));
        }
        var counts = tour.admin().getQueueRuntimeProperties(name);
        Tour.equal("messages", counts.getTotalMessageCount(), 0L);
    }

    private void renewMessageLock(
        String name, ServiceBusSenderClient sender, ServiceBusReceiverClient receiver)
        throws InterruptedException {
        Tour.send(sender, "long work");
        var message = Tour.one(receiver);
        var before = message.getLockedUntil();
        Thread.sleep(50);
        Tour.holds("lock is longer", receiver.renewMessageLock(message).isAfter(before));
        receiver.complete(message);
    }

    private void peek(
        String name, ServiceBusSenderClient sender, ServiceBusReceiverClient receiver) {
        Tour.send(sender, "1", "2", "3");
        var first = receiver.peekMessages(2).stream().toList();
        Tour.equal("first", Tour.bodies(first), List.of("1", "2"));
        Tour.equal("next", Tour.bodies(receiver.peekMessages(2)), List.of("3"));
        var from = receiver.peekMessages(5, first.get(1).getSequenceNumber());
        Tour.equal("from", Tour.bodies(from), List.of("2", "3"));
        Tour.equal("received", Tour.bodies(Tour.receive(receiver, 3)), List.of("1", "2", "3"));
    }

    private void scheduleAndCancel(
        String name, ServiceBusSenderClient sender, ServiceBusReceiverClient receiver) {
        var due = OffsetDateTime.now().plusHours(1).truncatedTo(ChronoUnit.MILLIS);
        var messages = List.of(new ServiceBusMessage("a"), new ServiceBusMessage("b"));
        // The SDK schedules when the result is read.
        var numbers = StreamSupport.stream(
            sender.scheduleMessages(messages, due).spliterator(), false).toList();
        var waiting = receiver.peekMessages(5).stream().toList();
        Tour.equal("bodies", Tour.bodies(waiting), List.of("a", "b"));
        Tour.equal("state", waiting.get(0).getState(), ServiceBusMessageState.SCHEDULED);
        var scheduled = waiting.get(0).getScheduledEnqueueTime();
        Tour.equal("due", scheduled.toInstant(), due.toInstant());
        sender.cancelScheduledMessages(numbers);
        Tour.equal("left", Tour.bodies(receiver.peekMessages(5, numbers.get(0))), List.of());
    }

    private void scheduledMessageArrives(
        String name, ServiceBusSenderClient sender, ServiceBusReceiverClient receiver) {
        var due = OffsetDateTime.now().plusSeconds(1).truncatedTo(ChronoUnit.MILLIS);
        sender.scheduleMessage(new ServiceBusMessage("now"), due);
        var got = Tour.one(receiver);
        Tour.equal("body", got.getBody().toString(), "now");
        Tour.holds("on time", !got.getEnqueuedTime().isBefore(due));
    }
}
