package main

import (
	"errors"
	"slices"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	sb "github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

func namespaceProperties(t *tour) {
	found := must(t.admin.GetNamespaceProperties(t.ctx, nil))
	equal("name", found.Name, "contoso")
	equal("SKU", found.SKU, "Standard")
}

func queueAdministration(t *tour) {
	wanted := &admin.QueueProperties{
		LockDuration:             ptr("PT30S"),
		MaxDeliveryCount:         ptr(int32(7)),
		RequiresSession:          ptr(true),
		DefaultMessageTimeToLive: ptr("P1D"),
		UserMetadata:             ptr("ü <&>"),
	}
	options := &admin.CreateQueueOptions{Properties: wanted}
	made := must(t.admin.CreateQueue(t.ctx, "admin-queue", options))
	found := must(t.admin.GetQueue(t.ctx, "admin-queue", nil))
	for _, each := range []admin.QueueProperties{made.QueueProperties, found.QueueProperties} {
		equal("lock duration", *each.LockDuration, "PT30S")
		equal("max delivery count", *each.MaxDeliveryCount, int32(7))
		equal("requires session", *each.RequiresSession, true)
		equal("time to live", *each.DefaultMessageTimeToLive, "P1D")
		equal("metadata", *each.UserMetadata, "ü <&>")
	}
	changed := found.QueueProperties
	changed.MaxDeliveryCount = ptr(int32(9))
	updated := must(t.admin.UpdateQueue(t.ctx, "admin-queue", changed, nil))
	equal("max delivery count", *updated.MaxDeliveryCount, int32(9))
	names := []string{}
	for pager := t.admin.NewListQueuesPager(nil); pager.More(); {
		for _, each := range must(pager.NextPage(t.ctx)).Queues {
			names = append(names, each.QueueName)
		}
	}
	equal("listed", slices.Contains(names, "admin-queue"), true)
	must(t.admin.DeleteQueue(t.ctx, "admin-queue", nil))
	if gone := must(t.admin.GetQueue(t.ctx, "admin-queue", nil)); gone != nil {
		fail("the queue is not deleted: %v", gone)
	}
}

func topicAdministration(t *tour) {
	must(t.admin.CreateTopic(t.ctx, "admin-topic", &admin.CreateTopicOptions{
		Properties: &admin.TopicProperties{UserMetadata: ptr("made")},
	}))
	equal("metadata", *must(t.admin.GetTopic(t.ctx, "admin-topic", nil)).UserMetadata, "made")
	must(t.admin.CreateSubscription(t.ctx, "admin-topic", "audit", &admin.CreateSubscriptionOptions{
		Properties: &admin.SubscriptionProperties{MaxDeliveryCount: ptr(int32(3))},
	}))
	changed := must(t.admin.GetSubscription(t.ctx, "admin-topic", "audit", nil)).SubscriptionProperties
	equal("max delivery count", *changed.MaxDeliveryCount, int32(3))
	changed.MaxDeliveryCount = ptr(int32(4))
	updated := must(t.admin.UpdateSubscription(t.ctx, "admin-topic", "audit", changed, nil))
	equal("max delivery count", *updated.MaxDeliveryCount, int32(4))
	for _, rule := range []admin.CreateRuleOptions{
		{Name: ptr("dear"), Filter: &admin.SQLFilter{Expression: "price > 100"}},
		{Name: ptr("red"), Filter: &admin.CorrelationFilter{
			CorrelationID:         ptr("red"),
			ApplicationProperties: map[string]any{"size": int64(3)},
		}},
	} {
		must(t.admin.CreateRule(t.ctx, "admin-topic", "audit", &rule))
	}
	equal("rules", t.rules("admin-topic", "audit"), []string{"$Default", "dear", "red"})
	red := must(t.admin.GetRule(t.ctx, "admin-topic", "audit", "red", nil))
	filter := red.Filter.(*admin.CorrelationFilter)
	equal("correlation id", *filter.CorrelationID, "red")
	equal("properties", filter.ApplicationProperties, map[string]any{"size": int64(3)})
	must(t.admin.DeleteRule(t.ctx, "admin-topic", "audit", "dear", nil))
	counts := must(t.admin.GetSubscriptionRuntimeProperties(t.ctx, "admin-topic", "audit", nil))
	equal("messages", counts.TotalMessageCount, int64(0))
	must(t.admin.DeleteSubscription(t.ctx, "admin-topic", "audit", nil))
	must(t.admin.DeleteTopic(t.ctx, "admin-topic", nil))
	if gone := must(t.admin.GetTopic(t.ctx, "admin-topic", nil)); gone != nil {
		fail("the topic is not deleted: %v", gone)
	}
}

func (t *tour) rules(topic, subscription string) []string {
	names := []string{}
	for pager := t.admin.NewListRulesPager(topic, subscription, nil); pager.More(); {
		for _, each := range must(pager.NextPage(t.ctx)).Rules {
			names = append(names, each.Name)
		}
	}
	slices.Sort(names)
	return names
}

func administrationErrors(t *tour) {
	must(t.admin.CreateQueue(t.ctx, "twice", nil))
	_, err := t.admin.CreateQueue(t.ctx, "twice", nil)
	var refused *azcore.ResponseError
	if !errors.As(err, &refused) {
		fail("a second creation gave %v", err)
	}
	equal("status", refused.StatusCode, 409)
	if found := must(t.admin.GetQueue(t.ctx, "nowhere", nil)); found != nil {
		fail("a missing queue was found: %v", found)
	}
}

func runtimeCounts(t *tour) {
	sender, receiver := t.queue("counted", nil)
	t.send(sender, "dead", "active")
	later := []*sb.Message{{Body: []byte("later")}}
	must(sender.ScheduleMessages(t.ctx, later, time.Now().Add(time.Hour), nil))
	check(receiver.DeadLetterMessage(t.ctx, t.one(receiver), nil))
	counts := must(t.admin.GetQueueRuntimeProperties(t.ctx, "counted", nil))
	equal("active", counts.ActiveMessageCount, int32(1))
	equal("dead letters", counts.DeadLetterMessageCount, int32(1))
	equal("scheduled", counts.ScheduledMessageCount, int32(1))
	equal("total", counts.TotalMessageCount, int64(3))
}
