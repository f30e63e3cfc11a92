import com.azure.core.exception.ResourceExistsException;
import com.azure.core.exception.ResourceNotFoundException;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.administration.models.CorrelationRuleFilter;
import com.azure.messaging.servicebus.administration.models.CreateQueueOptions;
import com.azure.messaging.servicebus.administration.models.CreateRuleOptions;
import com.azure.messaging.servicebus.administration.models.CreateSubscriptionOptions;
import com.azure.messaging.servicebus.administration.models.CreateTopicOptions;
import com.azure.messaging.servicebus.administration.models.QueueProperties;
import com.azure.messaging.servicebus.administration.models.RuleProperties;
import com.azure.messaging.servicebus.administration.models.SqlRuleFilter;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Steps of the administration client. */
record Administration(Tour tour) {
    Map<String, Tour.Step> steps() {
        var steps = new LinkedHashMap<String, Tour.Step>();
        steps.put("namespace properties", this::namespaceProperties);
        steps.put("queue administration", this::queueAdministration);
        steps.put("topic administration", this::topicAdministration);
        steps.put("administration errors", this::administrationErrors);
        steps.put("runtime counts", this::runtimeCounts);
        return steps;
    }

    private void namespaceProperties() {
        Tour.equal("name", tour.admin().getNamespaceProperties().getName(), "contoso");
    }

    private void queueAdministration() {
        var admin = tour.admin();
        var made = admin.createQueue("admin-queue", new CreateQueueOptions()
            .setLockDuration(Duration.ofSeconds(30))
            .setMaxDeliveryCount(7)
            .setSessionRequired(true)
            .setDefaultMessageTimeToLive(Duration.ofDays(1))
            .setUserMetadata("ü <&>"));
        var found = admin.getQueue("admin-queue");
        for (QueueProperties each : List.of(made, found)) {
            Tour.equal("lock duration", each.getLockDuration(), Duration.ofSeconds(30));
            Tour.equal("max delivery count", each.getMaxDeliveryCount(), 7);
            Tour.equal("requires session", each.isSessionRequired(), true);
            Tour.equal("time to live", each.getDefaultMessageTimeToLive(), Duration.ofDays(1));
            Tour.equal("metadata", each.getUserMetadata(), "ü <&>");
        }
        var updated = admin.updateQueue(found.setMaxDeliveryCount(9));
        Tour.equal("max delivery count", updated.getMaxDeliveryCount(), 9);
        Tour.equal("exists", admin.getQueueExists("admin-queue"), true);
        Tour.holds("listed", admin.listQueues().stream()
            .anyMatch(each -> each.getName().equals("admin-queue")));
        admin.deleteQueue("admin-queue");
        Tour.equal("exists", admin.getQueueExists("admin-queue"), false);
    }

    private void topicAdministration() {
        var admin = tour.admin();
        admin.createTopic("admin-topic", new CreateTopicOptions().setUserMetadata("made"));
        Tour.equal("metadata", admin.getTopic("admin-topic").getUserMetadata(), "made");
        admin.createSubscription("admin-topic", "audit",
            new CreateSubscriptionOptions().setMaxDeliveryCount(3));
        var found = admin.getSubscription("admin-topic", "audit");
        Tour.equal("max delivery count", found.getMaxDeliveryCount(), 3);
        var updated = admin.updateSubscription(found.setMaxDeliveryCount(4));
        Tour.equal("max delivery count", updated.getMaxDeliveryCount(), 4);
        admin.createRule("admin-topic", "dear", "audit",
            new CreateRuleOptions(new SqlRuleFilter("price > 100")));
        var filter = new CorrelationRuleFilter().setCorrelationId("red");
        filter.getProperties().put("size", 3);
        admin.createRule("admin-topic", "red", "audit", new CreateRuleOptions(filter));
        var names = admin.listRules("admin-topic", "audit").stream()
            .map(RuleProperties::getName).sorted().toList();
        Tour.equal("rules", names, List.of("$Default", "dear", "red"));
        var red = (CorrelationRuleFilter) admin.getRule("admin-topic", "audit", "red").getFilter();
        Tour.equal("correlation id", red.getCorrelationId(), "red");
        // This SDK has only texts for the values of properties.
        Tour.equal("properties", red.getProperties(), Map.of("size", "3"));
        admin.deleteRule("admin-topic", "audit", "dear");
        var counts = admin.getSubscriptionRuntimeProperties("admin-topic", "audit");
        Tour.equal("messages", counts.getTotalMessageCount(), 0L);
        admin.deleteSubscription("admin-topic", "audit");
        admin.deleteTopic("admin-topic");
        Tour.equal("exists", admin.getTopicExists("admin-topic"), false);
    }

    private void administrationErrors() {
        tour.admin().createQueue("twice");
        Tour.holds("conflict", Tour.error(() -> tour.admin().createQueue("twice"))
            instanceof ResourceExistsException);
        Tour.holds("not found", Tour.error(() -> tour.admin().getQueue("nowhere"))
            instanceof ResourceNotFoundException);
    }

    private void runtimeCounts() {
        tour.admin().createQueue("counted");
        try (var sender = tour.sender("counted"); var receiver = tour.receiver("counted")) {
            Tour.send(sender, "dead", "active");
            sender.scheduleMessage(new ServiceBusMessage("later"), OffsetDateTime.now().plusHours(1));
            receiver.deadLetter(Tour.one(receiver));
        }
        var counts = tour.admin().getQueueRuntimeProperties("counted");
        Tour.equal("active", counts.getActiveMessageCount(), 1);
        Tour.equal("dead letters", counts.getDeadLetterMessageCount(), 1);
        Tour.equal("scheduled", counts.getScheduledMessageCount(), 1);
        Tour.equal("total", counts.getTotalMessageCount(), 3L);
    }
}
