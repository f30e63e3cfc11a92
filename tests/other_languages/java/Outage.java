import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import java.io.IOException;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;

/**
 * Sends numbered messages with the SDK's defaults until its input ends. Prints one JSON line for
 * each send. The arguments are the queue and the beginning of every message's text.
 *
 * <p>In turn: one message with an id of its own, one without, a batch with ids, a batch without.
 */
final class Outage {
    private static final int IN_BATCH = 3;
    private static final int PAUSE_MS = 50;

    private final ServiceBusSenderClient sender;
    private final String name;
    private int number = 0;

    private Outage(String queue, String name) {
        this.sender = new ServiceBusClientBuilder()
            .connectionString(Tour.TEXT).sender().queueName(queue).buildClient();
        this.name = name;
    }

    private String turn(int turn) {
        var hasIds = turn % 2 == 0;
        var isBatch = turn % 4 >= 2;
        var texts = new ArrayList<String>();
        while (texts.size() < (isBatch ? IN_BATCH : 1)) {
            texts.add(name + "-" + number++);
        }
        var began = System.currentTimeMillis();
        var error = "";
        try {
            send(texts, hasIds, isBatch);
        } catch (RuntimeException caught) {
            error = ",\"error\":" + Tour.json(caught.toString());
        }
        var listed = texts.stream().map(Tour::json).collect(Collectors.joining(","));
        return "{\"texts\":[" + listed + "],\"has_ids\":" + hasIds + ",\"began_ms\":" + began
            + ",\"ended_ms\":" + System.currentTimeMillis() + error + "}";
    }

    private void send(List<String> texts, boolean hasIds, boolean isBatch) {
        var messages = new ArrayList<ServiceBusMessage>();
        for (var text : texts) {
            var message = new ServiceBusMessage(text);
            messages.add(hasIds ? message.setMessageId(text) : message);
        }
        if (!isBatch) {
            sender.sendMessage(messages.get(0));
            return;
        }
        var batch = sender.createMessageBatch();
        messages.forEach(batch::tryAddMessage);
        sender.sendMessages(batch);
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
        var outage = new Outage(arguments[0], arguments[1]);
        for (var turn = 0; !ended.await(PAUSE_MS, TimeUnit.MILLISECONDS); turn++) {
            System.out.println(outage.turn(turn));
        }
        System.exit(0);
    }
}
