import com.azure.core.amqp.AmqpTransportType;
import com.azure.core.amqp.exception.AmqpErrorCondition;
import com.azure.core.amqp.exception.AmqpException;
import com.azure.messaging.servicebus.ServiceBusFailureReason;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusSessionReceiverClient;
import com.azure.messaging.servicebus.administration.models.CorrelationRuleFilter;
import com.azure.messaging.servicebus.administration.models.CreateRuleOptions;
import com.azure.messaging.servicebus.administration.models.CreateSubscriptionOptions;
import com.azure.messaging.servicebus.administration.models.RuleProperties;
import com.azure.messaging.servicebus.administration.models.SqlRuleAction;
import com.azure.messaging.servicebus.administration.models.SqlRuleFilter;
import com.azure.messaging.servicebus.models.CompleteOptions;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;

/** Steps on topics and sessions, with processors, and what must fail. */
record TopicsAndSessions(Tour tour) {
    Map<String, Tour.Step> steps() {
        var steps = new LinkedHashMap<String, Tour.Step>();
        steps.put("topic with filters", this::topicWithFilters);
        steps.put("session in order", this::sessionInOrder);
        steps.put("session state and lock", this::sessionStateAndLock);
        steps.put("next session", this::nextSession);
        steps.put("processor", this::processor);
        steps.put("session processor", this::sessionProcessor);
        steps.put("rules over AMQP", this::rulesOverAmqp);
        steps.put("missing entity", this::missingEntity);
        steps.put("message too large", this::messageTooLarge);
        steps.put("wrong key", this::wrongKey);
        if (!Tour.PLAIN) { // this SDK has no WebSocket without TLS
            steps.put("websocket", this::websocket);
        }
        steps.put("transaction", this::transaction);
        return steps;
    }

    private ServiceBusReceiverClient subscription(String topic, String name) {
        return tour.builder().receiver().topicName(topic).subscriptionName(name).buildClient();
    }

    private void publish(String topic, ServiceBusMessage... messages) {
        try (var sender = tour.builder().sender().topicName(topic).buildClient()) {
            sender.sendMessages(List.of(messages));
        }
    }

    private static ServiceBusMessage message(String text, String property, int value) {
        var message = new ServiceBusMessage(text);
        message.getApplicationProperties().put(property, value);
        return message;
    }

    /** The AMQP condition of an error or of what caused it. */
    private static AmqpErrorCondition condition(Throwable error) {
        for (var each = error; each != null; each = each.getCause()) {
            if (each instanceof AmqpException known) {
                return known.getErrorCondition();
            }
        }
        throw new AssertionError("no AMQP error", error);
    }

    private void topicWithFilters() {
        var admin = tour.admin();
        admin.createTopic("news");
        admin.createSubscription("news", "all");
        var none = new CreateSubscriptionOptions();
        admin.createSubscription("news", "dear", "r", none,
            new CreateRuleOptions(new SqlRuleFilter("price > 100"))
                .setAction(new SqlRuleAction("SET seen = 'yes'")));
        admin.createSubscription("news", "red", "r", none,
            new CreateRuleOptions(new CorrelationRuleFilter().setLabel("red")));
        publish("news",
            message("cheap red", "price", 1).setSubject("red"),
            message("dear blue", "price", 200).setSubject("blue"));
        try (var all = subscription("news", "all");
            var dear = subscription("news", "dear");
            var red = subscription("news", "red")) {
            Tour.equal("all", Tour.bodies(Tour.receive(all, 2)), List.of("cheap red", "dear blue"));
            var found = Tour.one(dear);
            Tour.equal("dear", found.getBody().toString(), "dear blue");
            Tour.equal("seen", found.getApplicationProperties().get("seen"), "yes");
            dear.complete(found);
            Tour.staysEmpty(dear);
            Tour.equal("red", Tour.one(red).getBody().toString(), "cheap red");
        }
    }

    private void sessionInOrder() {
        tour.createSessionQueue("steps", "a1", "b1", "a2", "b2", "a3");
        try (var session = tour.session("steps", "a")) {
            Tour.equal("session", session.getSessionId(), "a");
            var messages = Tour.receive(session, 3);
            Tour.equal("bodies", Tour.bodies(messages), List.of("a1", "a2", "a3"));
            messages.forEach(session::complete);
            Tour.staysEmpty(session);
        }
    }

    private void sessionStateAndLock() throws InterruptedException {
        tour.createSessionQueue("stateful", "s1");
        // Another connection: on the same one the SDK returns the session that it has.
        var other = Tour.builder(Tour.TEXT, AmqpTransportType.AMQP).sessionReceiver()
            .queueName("stateful").buildClient();
        try (var session = tour.session("stateful", "s")) {
            Tour.equal("state", session.getSessionState(), null);
            session.setSessionState("step 3".getBytes());
            Tour.equal("state", new String(session.getSessionState()), "step 3");
            var before = session.renewSessionLock();
            Thread.sleep(50);
            Tour.holds("lock is longer", session.renewSessionLock().isAfter(before));
            Tour.equal("peeked", Tour.bodies(session.peekMessages(5)), List.of("s1"));
            Tour.equal("condition", condition(Tour.error(() -> other.acceptSession("s"))),
                AmqpErrorCondition.SESSION_CANNOT_BE_LOCKED);
        }
        try (var again = acceptWhenFree(other, "s")) {
            Tour.equal("state", new String(again.getSessionState()), "step 3");
        }
    }

    /** The SDK releases a session a little after `close` has returned. */
    private static ServiceBusReceiverClient acceptWhenFree(
        ServiceBusSessionReceiverClient receiver, String session) throws InterruptedException {
        var until = System.nanoTime() + Tour.WAIT.toNanos();
        while (true) {
            try {
                return receiver.acceptSession(session);
            } catch (AmqpException error) {
                if (System.nanoTime() > until) {
                    throw error;
                }
                Thread.sleep(50);
            }
        }
    }

    private void nextSession() {
        tour.createSessionQueue("any-session", "n1");
        try (var receiver = tour.builder().sessionReceiver().queueName("any-session").buildClient();
            var session = receiver.acceptNextSession()) {
            Tour.equal("session", session.getSessionId(), "n");
            session.complete(Tour.one(session));
        }
    }

    private void processor() throws InterruptedException {
        tour.admin().createQueue("processed");
        var seen = new ConcurrentLinkedQueue<String>();
        var errors = new ConcurrentLinkedQueue<Throwable>();
        var finished = new CountDownLatch(10);
        try (var sender = tour.sender("processed");
            var processor = tour.builder().processor().queueName("processed")
                .processMessage(context -> {
                    seen.add(context.getMessage().getBody().toString());
                    context.complete();
                    finished.countDown();
                })
                .processError(context -> errors.add(context.getException()))
                .disableAutoComplete()
                .buildProcessorClient()) {
            processor.start();
            var texts = IntStream.range(0, 10).mapToObj(Integer::toString).toList();
            Tour.send(sender, texts.toArray(String[]::new));
            Tour.holds("all processed", finished.await(Tour.WAIT.toSeconds(), TimeUnit.SECONDS));
            Tour.equal("order", List.copyOf(seen), texts);
        }
        Tour.equal("errors", List.copyOf(errors), List.of());
        var counts = tour.admin().getQueueRuntimeProperties("processed");
        Tour.equal("messages", counts.getTotalMessageCount(), 0L);
    }

    private void sessionProcessor() throws InterruptedException {
        tour.createSessionQueue("sessions-processed", "a1", "b1", "a2", "b2");
        var seen = new ConcurrentLinkedQueue<String>();
        var finished = new CountDownLatch(4);
        try (var processor = tour.builder().sessionProcessor().queueName("sessions-processed")
            .maxConcurrentSessions(2)
            .processMessage(context -> {
                seen.add(context.getMessage().getBody().toString());
                finished.countDown();
            })
            .processError(context -> { })
            .buildProcessorClient()) {
            processor.start();
            Tour.holds("all processed", finished.await(Tour.WAIT.toSeconds(), TimeUnit.SECONDS));
        }
        Tour.equal("messages", List.copyOf(new TreeSet<>(seen)), List.of("a1", "a2", "b1", "b2"));
        var inSession = seen.stream().filter(each -> each.startsWith("a")).toList();
        Tour.equal("order", inSession, List.of("a1", "a2"));
    }

    private void rulesOverAmqp() {
        tour.admin().createTopic("ruled");
        tour.admin().createSubscription("ruled", "mine");
        try (var rules = tour.builder().ruleManager().topicName("ruled").subscriptionName("mine")
            .buildClient()) {
            rules.deleteRule("$Default");
            rules.createRule("big", new CreateRuleOptions(new SqlRuleFilter("size > 3")));
            rules.createRule("green",
                new CreateRuleOptions(new CorrelationRuleFilter().setLabel("green")));
            var names = rules.listRules().stream().map(RuleProperties::getName).sorted().toList();
            Tour.equal("rules", names, List.of("big", "green"));
        }
        publish("ruled", message("small", "size", 1), message("big", "size", 9));
        try (var receiver = subscription("ruled", "mine")) {
            Tour.equal("body", Tour.one(receiver).getBody().toString(), "big");
            Tour.staysEmpty(receiver);
        }
    }

    private void missingEntity() {
        var reason = ServiceBusFailureReason.MESSAGING_ENTITY_NOT_FOUND;
        Tour.fails(reason, () -> Tour.send(tour.sender("nowhere"), "x"));
        Tour.fails(reason, () -> tour.receiver("nowhere").peekMessage());
        // These two have no reason in this SDK, only the AMQP error as they or their cause.
        var missing = AmqpErrorCondition.NOT_FOUND;
        var receiving = Tour.error(() -> Tour.one(tour.receiver("nowhere")));
        Tour.equal("receiving", condition(receiving), missing);
        var accepting = Tour.error(() -> tour.session("nowhere", "s"));
        Tour.equal("accepting", condition(accepting), missing);
    }

    private void messageTooLarge() {
        tour.admin().createQueue("large");
        try (var sender = tour.sender("large"); var receiver = tour.receiver("large")) {
            Tour.send(sender, "small");
            var began = System.nanoTime();
            Tour.fails(ServiceBusFailureReason.MESSAGE_SIZE_EXCEEDED,
                () -> Tour.send(sender, "x".repeat(1_200_000)));
            var tookMs = (System.nanoTime() - began) / 1_000_000;
            // The SDK's own retries would take more than five seconds.
            Tour.holds("a refusal after " + tookMs + " ms without a retry", tookMs < 4_000);
            Tour.send(sender, "after");
            Tour.equal("bodies", Tour.bodies(Tour.receive(receiver, 2)), List.of("small", "after"));
        }
    }

    private void wrongKey() {
        tour.admin().createQueue("guarded");
        var text = Tour.TEXT.replaceFirst("SharedAccessKey=[^;]*", "SharedAccessKey=d3Jvbmc=");
        try (var stranger = Tour.builder(text, AmqpTransportType.AMQP).sender()
            .queueName("guarded").buildClient()) {
            Tour.fails(ServiceBusFailureReason.UNAUTHORIZED, () -> Tour.send(stranger, "x"));
        }
    }

    private void websocket() {
        tour.admin().createQueue("over-websocket");
        var builder = Tour.builder(Tour.TEXT, AmqpTransportType.AMQP_WEB_SOCKETS);
        try (var sender = builder.sender().queueName("over-websocket").buildClient();
            var receiver = builder.receiver().queueName("over-websocket").buildClient()) {
            Tour.send(sender, "hello");
            var message = Tour.one(receiver);
            Tour.equal("body", message.getBody().toString(), "hello");
            receiver.complete(message);
        }
    }

    /** A transaction is applied as a whole or not at all. */
    private void transaction() {
        tour.admin().createQueue("transacted");
        try (var sender = tour.sender("transacted"); var receiver = tour.receiver("transacted")) {
            Tour.send(sender, "first");
            var first = Tour.one(receiver);
            var undone = sender.createTransaction();
            sender.sendMessage(new ServiceBusMessage("undone"), undone);
            sender.rollbackTransaction(undone);
            var done = sender.createTransaction();
            sender.sendMessage(new ServiceBusMessage("done"), done);
            receiver.complete(first, new CompleteOptions().setTransactionContext(done));
            sender.commitTransaction(done);
            var left = Tour.one(receiver);
            Tour.equal("body", left.getBody().toString(), "done");
            receiver.complete(left);
        }
    }
}
