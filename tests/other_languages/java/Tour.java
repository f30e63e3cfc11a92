import com.azure.core.amqp.AmqpRetryOptions;
import com.azure.core.amqp.AmqpTransportType;
import com.azure.core.http.HttpPipelineCallContext;
import com.azure.core.http.HttpPipelineNextPolicy;
import com.azure.core.http.HttpResponse;
import com.azure.core.http.policy.HttpPipelinePolicy;
import com.azure.core.util.UrlBuilder;
import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusException;
import com.azure.messaging.servicebus.ServiceBusFailureReason;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClient;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClientBuilder;
import com.azure.messaging.servicebus.administration.models.CreateQueueOptions;
import com.azure.messaging.servicebus.models.SubQueue;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.net.MalformedURLException;
import java.net.URI;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import reactor.core.publisher.Mono;

/**
 * A tour of the Java SDK against a broker. Prints one JSON line for each step.
 *
 * <p>The connection string is in SERVICEBUS_CONNECTION_STRING. With UseDevelopmentEmulator=true the
 * tour uses no TLS; otherwise javax.net.ssl.trustStore names the authority to trust.
 */
final class Tour {
    static final String TEXT = System.getenv("SERVICEBUS_CONNECTION_STRING");
    static final boolean PLAIN = TEXT.contains("UseDevelopmentEmulator=true");
    static final int PORT = URI.create(TEXT.split("[=;]")[1]).getPort();
    static final Duration WAIT = Duration.ofSeconds(20);

    /** How long a receiver that must stay empty is watched. */
    static final Duration BRIEF = Duration.ofMillis(500);

    private final ServiceBusAdministrationClient admin = new ServiceBusAdministrationClientBuilder()
        .connectionString(TEXT)
        .addPolicy(new AtTheBroker())
        .buildClient();
    private final ServiceBusClientBuilder builder = builder(TEXT, AmqpTransportType.AMQP);

    interface Step {
        void run() throws Exception;
    }

    /** The administration client of the SDK always uses https on port 443. */
    private static final class AtTheBroker implements HttpPipelinePolicy {
        @Override
        public Mono<HttpResponse> process(HttpPipelineCallContext call, HttpPipelineNextPolicy next) {
            var request = call.getHttpRequest();
            try {
                request.setUrl(UrlBuilder.parse(request.getUrl())
                    .setScheme(PLAIN ? "http" : "https").setPort(PORT).toUrl());
            } catch (MalformedURLException error) {
                return Mono.error(error);
            }
            return next.process();
        }
    }

    /** One connection for everything that is built from it; no second attempt. */
    static ServiceBusClientBuilder builder(String text, AmqpTransportType transport) {
        return new ServiceBusClientBuilder()
            .connectionString(text)
            .transportType(transport)
            .retryOptions(new AmqpRetryOptions().setMaxRetries(0).setTryTimeout(WAIT));
    }

    ServiceBusAdministrationClient admin() {
        return admin;
    }

    ServiceBusClientBuilder builder() {
        return builder;
    }

    ServiceBusSenderClient sender(String queue) {
        return builder.sender().queueName(queue).buildClient();
    }

    ServiceBusReceiverClient receiver(String queue) {
        return builder.receiver().queueName(queue).buildClient();
    }

    ServiceBusReceiverClient deadLetters(String queue) {
        return builder.receiver().queueName(queue).subQueue(SubQueue.DEAD_LETTER_QUEUE).buildClient();
    }

    ServiceBusReceiverClient session(String queue, String session) {
        return builder.sessionReceiver().queueName(queue).buildClient().acceptSession(session);
    }

    void createSessionQueue(String name, String... texts) {
        admin.createQueue(name, new CreateQueueOptions().setSessionRequired(true));
        try (var sender = sender(name)) {
            for (var text : texts) {
                sender.sendMessage(new ServiceBusMessage(text).setSessionId(text.substring(0, 1)));
            }
        }
    }

    static void send(ServiceBusSenderClient sender, String... texts) {
        for (var text : texts) {
            sender.sendMessage(new ServiceBusMessage(text));
        }
    }

    static List<ServiceBusReceivedMessage> receive(ServiceBusReceiverClient receiver, int count) {
        var messages = new ArrayList<ServiceBusReceivedMessage>();
        while (messages.size() < count) {
            var before = messages.size();
            receiver.receiveMessages(count - before, WAIT).forEach(messages::add);
            if (messages.size() == before) {
                throw new AssertionError("only " + before + " of " + count + " messages arrived");
            }
        }
        return messages;
    }

    static ServiceBusReceivedMessage one(ServiceBusReceiverClient receiver) {
        return receive(receiver, 1).get(0);
    }

    static void staysEmpty(ServiceBusReceiverClient receiver) {
        equal("what is left", bodies(receiver.receiveMessages(1, BRIEF)), List.of());
    }

    static List<String> bodies(Iterable<ServiceBusReceivedMessage> messages) {
        var texts = new ArrayList<String>();
        messages.forEach(each -> texts.add(each.getBody().toString()));
        return texts;
    }

    static void equal(String what, Object got, Object wanted) {
        if (!Objects.equals(got, wanted)) {
            throw new AssertionError(what + " is " + got + ", not " + wanted);
        }
    }

    static void holds(String what, boolean condition) {
        equal(what, condition, true);
    }

    /** The error of a call that must fail. */
    static Throwable error(Step call) {
        try {
            call.run();
        } catch (Throwable error) {
            return error;
        }
        throw new AssertionError("the call succeeded");
    }

    static void fails(ServiceBusFailureReason reason, Step call) {
        var error = error(call);
        if (error instanceof ServiceBusException known) {
            equal("reason of " + error, known.getReason(), reason);
        } else {
            throw new AssertionError("not a ServiceBusException", error);
        }
    }

    static String json(String text) {
        var quoted = new StringBuilder("\"");
        for (var letter : text.toCharArray()) {
            quoted.append(letter < ' ' || letter == '"' || letter == '\\' || letter > '~'
                ? String.format("\\u%04x", (int) letter) : letter);
        }
        return quoted.append('"').toString();
    }

    private static String traced(Throwable error) {
        var text = new StringWriter();
        error.printStackTrace(new PrintWriter(text));
        return text.toString();
    }

    public static void main(String[] arguments) {
        var tour = new Tour();
        var steps = new LinkedHashMap<String, Step>();
        steps.putAll(new Administration(tour).steps());
        steps.putAll(new Queues(tour).steps());
        steps.putAll(new TopicsAndSessions(tour).steps());
        for (Map.Entry<String, Step> step : steps.entrySet()) {
            var began = System.nanoTime();
            var error = "";
            try {
                step.getValue().run();
            } catch (Throwable caught) {
                error = ",\"error\":" + json(traced(caught));
            }
            var seconds = (System.nanoTime() - began) / 1e9;
            System.out.println("{\"step\":" + json(step.getKey()) + error
                + ",\"seconds\":" + seconds + "}");
        }
        System.exit(0);
    }
}
