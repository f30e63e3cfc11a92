import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import java.io.IOException;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.time.Duration;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/**
 * Receives and completes messages with the SDK's defaults until its input ends. Prints one JSON line
 * for each message before it completes it, and one when it has. The argument is a queue, or
 * TOPIC/subscriptions/NAME. An error is that of the completion, or without a number of the receive.
 */
final class Receive {
    private static final int AT_ONCE = 10;
    private static final Duration WAIT = Duration.ofSeconds(2);
    private static final int AFTER_ERROR_MS = 200;

    private final ServiceBusReceiverClient receiver;

    private Receive(String entity) {
        var builder = new ServiceBusClientBuilder().connectionString(Tour.TEXT).receiver();
        var parts = entity.split("/subscriptions/");
        this.receiver = (parts.length == 2
            ? builder.topicName(parts[0]).subscriptionName(parts[1])
            : builder.queueName(entity)).buildClient();
    }

    private void turn(CountDownLatch ended) throws InterruptedException {
        try {
            // It blocks until the first message comes, so each has its own time.
            receiver.receiveMessages(AT_ONCE, WAIT).forEach(this::take);
        } catch (RuntimeException caught) {
            print("", caught);
            ended.await(AFTER_ERROR_MS, TimeUnit.MILLISECONDS);
        }
    }

    private void take(ServiceBusReceivedMessage message) {
        var number = "\"number\":" + message.getSequenceNumber() + ",";
        print("\"text\":" + Tour.json(message.getBody().toString())
            + ",\"id\":" + Tour.json(message.getMessageId()) + "," + number, null);
        RuntimeException failed = null;
        try {
            receiver.complete(message);
        } catch (RuntimeException caught) {
            failed = caught;
        }
        print(number + "\"settled\":true,", failed);
    }

    private static void print(String fields, RuntimeException failed) {
        var error = failed == null ? "" : ",\"error\":" + Tour.json(failed.toString());
        System.out.println("{" + fields + "\"at_ms\":" + System.currentTimeMillis() + error + "}");
    }

    public static void main(String[] arguments) throws InterruptedException {
        var ended = new CountDownLatch(1);
        var reader = new Thread(() -> {
            try {
                System.in.transferTo(OutputStream.nullOutputStream());
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
            ended.countDown();
        });
        reader.setDaemon(true);
        reader.start();
        var receive = new Receive(arguments[0]);
        while (ended.getCount() > 0) {
            receive.turn(ended);
        }
        System.exit(0);
    }
}
