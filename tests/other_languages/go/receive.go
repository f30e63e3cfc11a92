package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	sb "github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

const (
	atOnce     = 10
	afterError = 200 * time.Millisecond
)

// received is what the program prints about one message when it gets it, about its completion, or
// about a receive that failed.
type received struct {
	Text    string `json:"text,omitempty"`
	ID      string `json:"id,omitempty"`
	Number  int64  `json:"number,omitempty"`
	Settled bool   `json:"settled,omitempty"`
	AtMS    int64  `json:"at_ms"`
	Error   string `json:"error,omitempty"`
}

// receive receives and completes messages with the SDK's defaults until its input ends, and prints
// one JSON line for each message before it completes it, and one when it has. An error is that of
// the completion, or without a number of the receive. The entity is a queue, or
// TOPIC/subscriptions/NAME.
func receive(entity string) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	client := must(sb.NewClientFromConnectionString(text, nil))
	var receiver *sb.Receiver
	if topic, name, is := strings.Cut(entity, "/subscriptions/"); is {
		receiver = must(client.NewReceiverForSubscription(topic, name, nil))
	} else {
		receiver = must(client.NewReceiverForQueue(entity, nil))
	}
	output := json.NewEncoder(os.Stdout)
	say := func(line received, err error) {
		if err != nil {
			line.Error = fmt.Sprintf("%T: %v", err, err)
		}
		check(output.Encode(line))
	}
	for ctx.Err() == nil {
		messages, err := receiver.ReceiveMessages(ctx, atOnce, nil)
		if err != nil && ctx.Err() == nil {
			say(received{AtMS: time.Now().UnixMilli()}, err)
			time.Sleep(afterError)
		}
		now := time.Now().UnixMilli()
		for _, message := range messages {
			line := received{
				Text: string(message.Body), ID: message.MessageID,
				Number: *message.SequenceNumber, AtMS: now,
			}
			say(line, nil)
			line.Settled = true
			say(line, receiver.CompleteMessage(context.Background(), message, nil))
		}
	}
	check(client.Close(context.Background()))
}
