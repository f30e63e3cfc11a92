package main

import (
	"context"
	"errors"
	"net"
	"regexp"
	"slices"
	"strings"
	"time"

	sb "github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
	"github.com/coder/websocket"
)

var steps = []step{
	{"namespace properties", namespaceProperties},
	{"queue administration", queueAdministration},
	{"topic administration", topicAdministration},
	{"administration errors", administrationErrors},
	{"runtime counts", runtimeCounts},
	{"send and receive", sendAndReceive},
	{"message properties", messageProperties},
	{"batch", batch},
	{"abandon", abandon},
	{"dead letter", deadLetter},
	{"defer", deferring},
	{"receive and delete", receiveAndDelete},
	{"renew message lock", renewMessageLock},
	{"peek", peek},
	{"schedule and cancel", scheduleAndCancel},
	{"scheduled message arrives", scheduledMessageArrives},
	{"topic with filters", topicWithFilters},
	{"session in order", sessionInOrder},
	{"session state and lock", sessionStateAndLock},
	{"next session", nextSession},
	{"list sessions", listSessions},
	{"missing entity", missingEntity},
	{"message too large", messageTooLarge},
	{"wrong key", wrongKey},
	{"websocket", overWebsocket},
}

func topicWithFilters(t *tour) {
	must(t.admin.CreateTopic(t.ctx, "news", nil))
	must(t.admin.CreateSubscription(t.ctx, "news", "all", nil))
	for name, rule := range map[string]admin.RuleProperties{
		"dear": {
			Name:   "r",
			Filter: &admin.SQLFilter{Expression: "price > 100"},
			Action: &admin.SQLAction{Expression: "SET seen = 'yes'"},
		},
		"red": {Name: "r", Filter: &admin.CorrelationFilter{Subject: ptr("red")}},
	} {
		properties := &admin.SubscriptionProperties{DefaultRule: &rule}
		options := &admin.CreateSubscriptionOptions{Properties: properties}
		must(t.admin.CreateSubscription(t.ctx, "news", name, options))
	}
	sender := t.sender("news")
	for _, each := range []struct {
		body, subject string
		price         int
	}{{"cheap red", "red", 1}, {"dear blue", "blue", 200}} {
		check(sender.SendMessage(t.ctx, &sb.Message{
			Body:                  []byte(each.body),
			Subject:               &each.subject,
			ApplicationProperties: map[string]any{"price": int32(each.price)},
		}, nil))
	}
	everything := must(t.client.NewReceiverForSubscription("news", "all", nil))
	equal("all", bodies(t.receive(everything, 2)), []string{"cheap red", "dear blue"})
	dear := must(t.client.NewReceiverForSubscription("news", "dear", nil))
	found := t.one(dear)
	equal("dear", string(found.Body), "dear blue")
	equal("seen", found.ApplicationProperties["seen"], "yes")
	check(dear.CompleteMessage(t.ctx, found, nil))
	t.staysEmpty(dear)
	red := must(t.client.NewReceiverForSubscription("news", "red", nil))
	equal("red", string(t.one(red).Body), "cheap red")
}

func (t *tour) sessionQueue(name string, sessions ...string) {
	t.queue(name, &admin.QueueProperties{RequiresSession: ptr(true)})
	sender := t.sender(name)
	for _, each := range sessions {
		session := each[:1]
		check(sender.SendMessage(t.ctx, &sb.Message{Body: []byte(each), SessionID: &session}, nil))
	}
}

func sessionInOrder(t *tour) {
	t.sessionQueue("steps", "a1", "b1", "a2", "b2", "a3")
	session := must(t.client.AcceptSessionForQueue(t.ctx, "steps", "a", nil))
	equal("session", session.SessionID(), "a")
	messages := t.receive(session, 3)
	equal("bodies", bodies(messages), []string{"a1", "a2", "a3"})
	for _, each := range messages {
		check(session.CompleteMessage(t.ctx, each, nil))
	}
	t.staysEmpty(session)
	check(session.Close(t.ctx))
}

func sessionStateAndLock(t *tour) {
	t.sessionQueue("stateful", "s1")
	session := must(t.client.AcceptSessionForQueue(t.ctx, "stateful", "s", nil))
	equal("state", len(must(session.GetSessionState(t.ctx, nil))), 0)
	check(session.SetSessionState(t.ctx, []byte("step 3"), nil))
	equal("state", string(must(session.GetSessionState(t.ctx, nil))), "step 3")
	before := session.LockedUntil()
	time.Sleep(50 * time.Millisecond)
	check(session.RenewSessionLock(t.ctx, nil))
	equal("lock is longer", session.LockedUntil().After(before), true)
	equal("peeked", bodies(must(session.PeekMessages(t.ctx, 5, nil))), []string{"s1"})
	if _, err := t.client.AcceptSessionForQueue(t.ctx, "stateful", "s", nil); err == nil {
		fail("a locked session was accepted again")
	}
	check(session.Close(t.ctx))
	again := must(t.client.AcceptSessionForQueue(t.ctx, "stateful", "s", nil))
	equal("state", string(must(again.GetSessionState(t.ctx, nil))), "step 3")
	check(again.Close(t.ctx))
}

func nextSession(t *tour) {
	t.sessionQueue("any-session", "n1")
	session := must(t.client.AcceptNextSessionForQueue(t.ctx, "any-session", nil))
	equal("session", session.SessionID(), "n")
	check(session.CompleteMessage(t.ctx, t.one(session), nil))
	check(session.Close(t.ctx))
}

func listSessions(t *tour) {
	t.sessionQueue("listed", "a1", "b1", "c1")
	names := []string{}
	for pager := t.client.NewListSessionsForQueuePager("listed", nil); pager.More(); {
		names = append(names, must(pager.NextPage(t.ctx)).Sessions...)
	}
	slices.Sort(names)
	equal("sessions", names, []string{"a", "b", "c"})
}

func hasCode(err error, code sb.Code) {
	var known *sb.Error
	if !errors.As(err, &known) {
		fail("%T: %v", err, err)
	}
	equal("code of "+err.Error(), known.Code, code)
}

func missingEntity(t *tour) {
	err := t.sender("nowhere").SendMessage(t.ctx, &sb.Message{Body: []byte("x")}, nil)
	hasCode(err, sb.CodeNotFound)
	receiver := must(t.client.NewReceiverForQueue("nowhere", nil))
	_, err = receiver.ReceiveMessages(t.ctx, 1, nil)
	hasCode(err, sb.CodeNotFound)
	_, err = t.client.AcceptSessionForQueue(t.ctx, "nowhere", "s", nil)
	hasCode(err, sb.CodeNotFound)
}

func messageTooLarge(t *tour) {
	sender, receiver := t.queue("large", nil)
	t.send(sender, "small")
	began := time.Now()
	err := sender.SendMessage(t.ctx, &sb.Message{Body: make([]byte, 1_200_000)}, nil)
	took := time.Since(began)
	equal("error", errors.Is(err, sb.ErrMessageTooLarge), true)
	// A broker that does not answer is noticed after a minute.
	if took > wait {
		fail("the refusal took %v", took)
	}
	t.send(sender, "after")
	equal("bodies", bodies(t.receive(receiver, 2)), []string{"small", "after"})
}

func wrongKey(t *tour) {
	t.queue("guarded", nil)
	wrong := regexp.MustCompile(`SharedAccessKey=[^;]*`).ReplaceAllString(text, "SharedAccessKey=d3Jvbmc=")
	stranger := must(sb.NewClientFromConnectionString(wrong, clientOptions()))
	sender := must(stranger.NewSender("guarded", nil))
	hasCode(sender.SendMessage(t.ctx, &sb.Message{Body: []byte("x")}, nil), sb.CodeUnauthorizedAccess)
	check(stranger.Close(t.ctx))
}

func overWebsocket(t *tour) {
	t.queue("over-websocket", nil)
	dial := func(ctx context.Context, args sb.NewWebSocketConnArgs) (net.Conn, error) {
		address := args.Host
		if plain { // the SDK always asks for wss
			address = strings.Replace(address, "wss:", "ws:", 1)
		}
		options := &websocket.DialOptions{Subprotocols: []string{"amqp"}}
		socket, _, err := websocket.Dial(ctx, address, options)
		if err != nil {
			return nil, err
		}
		return websocket.NetConn(context.Background(), socket, websocket.MessageBinary), nil
	}
	options := clientOptions()
	options.NewWebSocketConn = dial
	over := must(sb.NewClientFromConnectionString(text, options))
	sender := must(over.NewSender("over-websocket", nil))
	receiver := must(over.NewReceiverForQueue("over-websocket", nil))
	t.send(sender, "hello")
	message := t.one(receiver)
	equal("body", string(message.Body), "hello")
	check(receiver.CompleteMessage(t.ctx, message, nil))
	check(over.Close(t.ctx))
}
