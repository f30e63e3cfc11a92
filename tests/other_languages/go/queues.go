package main

import (
	"strconv"
	"time"

	sb "github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

func sendAndReceive(t *tour) {
	sender, receiver := t.queue("plain", nil)
	t.send(sender, "one", "two", "three")
	messages := t.receive(receiver, 3)
	equal("bodies", bodies(messages), []string{"one", "two", "three"})
	for _, each := range messages {
		check(receiver.CompleteMessage(t.ctx, each, nil))
	}
	t.staysEmpty(receiver)
}

func messageProperties(t *tour) {
	sender, receiver := t.queue("properties", nil)
	properties := map[string]any{"text": "ü", "number": int64(42), "real": 1.5, "yes": true}
	check(sender.SendMessage(t.ctx, &sb.Message{
		ApplicationProperties: properties,
		Body:                  []byte{0, 255, 1},
		ContentType:           ptr("application/octet-stream"),
		CorrelationID:         ptr("correlation-1"),
		MessageID:             ptr("id-1"),
		PartitionKey:          ptr("session-1"),
		ReplyTo:               ptr("reply-1"),
		ReplyToSessionID:      ptr("reply-session-1"),
		SessionID:             ptr("session-1"),
		Subject:               ptr("subject-1"),
		TimeToLive:            ptr(time.Hour),
		To:                    ptr("to-1"),
	}, nil))
	got := t.one(receiver)
	equal("application properties", got.ApplicationProperties, properties)
	equal("body", got.Body, []byte{0, 255, 1})
	equal("content type", *got.ContentType, "application/octet-stream")
	equal("correlation id", *got.CorrelationID, "correlation-1")
	equal("message id", got.MessageID, "id-1")
	equal("partition key", *got.PartitionKey, "session-1")
	equal("reply to", *got.ReplyTo, "reply-1")
	equal("reply to session id", *got.ReplyToSessionID, "reply-session-1")
	equal("session id", *got.SessionID, "session-1")
	equal("subject", *got.Subject, "subject-1")
	equal("time to live", *got.TimeToLive, time.Hour)
	equal("to", *got.To, "to-1")
	equal("delivery count", got.DeliveryCount, uint32(1)) // this SDK counts the present delivery
	equal("state", got.State, sb.MessageStateActive)
	equal("lock after arrival", got.LockedUntil.After(*got.EnqueuedTime), true)
	equal("recent", time.Since(*got.EnqueuedTime).Abs() < 10*time.Minute, true)
	check(receiver.CompleteMessage(t.ctx, got, nil))
}

func batch(t *tour) {
	sender, receiver := t.queue("batch", nil)
	many := must(sender.NewMessageBatch(t.ctx, nil))
	wanted := []string{}
	for number := range 50 {
		wanted = append(wanted, strconv.Itoa(number))
		check(many.AddMessage(&sb.Message{Body: []byte(wanted[number])}, nil))
	}
	check(sender.SendMessageBatch(t.ctx, many, nil))
	equal("bodies", bodies(t.receive(receiver, 50)), wanted)
	small := must(sender.NewMessageBatch(t.ctx, &sb.MessageBatchOptions{MaxBytes: 1_000}))
	err := small.AddMessage(&sb.Message{Body: make([]byte, 2_000)}, nil)
	equal("error", err, sb.ErrMessageTooLarge)
}

func abandon(t *tour) {
	properties := &admin.QueueProperties{MaxDeliveryCount: ptr(int32(2))}
	sender, receiver := t.queue("abandon", properties)
	t.send(sender, "again")
	options := &sb.AbandonMessageOptions{PropertiesToModify: map[string]any{"note": "first"}}
	check(receiver.AbandonMessage(t.ctx, t.one(receiver), options))
	second := t.one(receiver)
	equal("delivery count", second.DeliveryCount, uint32(2))
	equal("note", second.ApplicationProperties["note"], "first")
	check(receiver.AbandonMessage(t.ctx, second, nil))
	letter := t.one(t.deadLetters("abandon"))
	equal("reason", *letter.DeadLetterReason, "MaxDeliveryCountExceeded")
}

func deadLetter(t *tour) {
	sender, receiver := t.queue("dead-letter", nil)
	t.send(sender, "bad")
	check(receiver.DeadLetterMessage(t.ctx, t.one(receiver), &sb.DeadLetterOptions{
		Reason:             ptr("Malformed"),
		ErrorDescription:   ptr("no amount"),
		PropertiesToModify: map[string]any{"checked": true},
	}))
	dead := t.deadLetters("dead-letter")
	letter := t.one(dead)
	equal("body", string(letter.Body), "bad")
	equal("reason", *letter.DeadLetterReason, "Malformed")
	equal("description", *letter.DeadLetterErrorDescription, "no amount")
	equal("source", *letter.DeadLetterSource, "dead-letter")
	equal("property", letter.ApplicationProperties["checked"], true)
	check(dead.CompleteMessage(t.ctx, letter, nil))
	t.staysEmpty(dead)
}

func deferring(t *tour) {
	sender, receiver := t.queue("defer", nil)
	t.send(sender, "later")
	first := t.one(receiver)
	check(receiver.DeferMessage(t.ctx, first, nil))
	t.staysEmpty(receiver)
	number := []int64{*first.SequenceNumber}
	deferred := must(receiver.ReceiveDeferredMessages(t.ctx, number, nil))
	equal("bodies", bodies(deferred), []string{"later"})
	equal("state", deferred[0].State, sb.MessageStateDeferred)
	check(receiver.CompleteMessage(t.ctx, deferred[0], nil))
	if _, err := receiver.ReceiveDeferredMessages(t.ctx, number, nil); err == nil {
		fail("a completed message was received again")
	}
}

func receiveAndDelete(t *tour) {
	sender, _ := t.queue("delete", nil)
	t.send(sender, "one", "two")
	options := &sb.ReceiverOptions{ReceiveMode: sb.ReceiveModeReceiveAndDelete}
	receiver := must(t.client.NewReceiverForQueue("delete", options))
	equal("bodies", bodies(t.receive(receiver, 2)), []string{"one", "two"})
	check(receiver.Close(t.ctx))
	counts := must(t.admin.GetQueueRuntimeProperties(t.ctx, "delete", nil))
	equal("messages", counts.TotalMessageCount, int64(0))
}

func renewMessageLock(t *tour) {
	properties := &admin.QueueProperties{LockDuration: ptr("PT10S")}
	sender, receiver := t.queue("renew", properties)
	t.send(sender, "long work")
	message := t.one(receiver)
	before := *message.LockedUntil
	time.Sleep(50 * time.Millisecond)
	check(receiver.RenewMessageLock(t.ctx, message, nil))
	equal("lock is longer", message.LockedUntil.After(before), true)
	check(receiver.CompleteMessage(t.ctx, message, nil))
}

func peek(t *tour) {
	sender, receiver := t.queue("peek", nil)
	t.send(sender, "1", "2", "3")
	first := must(receiver.PeekMessages(t.ctx, 2, nil))
	equal("first", bodies(first), []string{"1", "2"})
	equal("next", bodies(must(receiver.PeekMessages(t.ctx, 2, nil))), []string{"3"})
	from := &sb.PeekMessagesOptions{FromSequenceNumber: first[1].SequenceNumber}
	equal("from", bodies(must(receiver.PeekMessages(t.ctx, 5, from))), []string{"2", "3"})
	equal("received", bodies(t.receive(receiver, 3)), []string{"1", "2", "3"})
}

func scheduleAndCancel(t *tour) {
	sender, receiver := t.queue("schedule", nil)
	due := time.Now().Add(time.Hour).Truncate(time.Millisecond)
	messages := []*sb.Message{{Body: []byte("a")}, {Body: []byte("b")}}
	numbers := must(sender.ScheduleMessages(t.ctx, messages, due, nil))
	waiting := must(receiver.PeekMessages(t.ctx, 5, nil))
	equal("bodies", bodies(waiting), []string{"a", "b"})
	equal("state", waiting[0].State, sb.MessageStateScheduled)
	equal("due", waiting[0].ScheduledEnqueueTime.UnixMilli(), due.UnixMilli())
	check(sender.CancelScheduledMessages(t.ctx, numbers, nil))
	from := &sb.PeekMessagesOptions{FromSequenceNumber: &numbers[0]}
	equal("left", bodies(must(receiver.PeekMessages(t.ctx, 5, from))), []string{})
}

func scheduledMessageArrives(t *tour) {
	sender, receiver := t.queue("soon", nil)
	due := time.Now().Add(time.Second).Truncate(time.Millisecond)
	must(sender.ScheduleMessages(t.ctx, []*sb.Message{{Body: []byte("now")}}, due, nil))
	got := t.one(receiver)
	equal("body", string(got.Body), "now")
	if got.EnqueuedTime.Before(due) {
		fail("%v is before %v", got.EnqueuedTime, due)
	}
}
