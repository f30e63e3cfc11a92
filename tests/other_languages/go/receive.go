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

// received is what the program prints about one message, or about a receive that failed.
type received struct {
	Text   string `json:"text"`
	ID     string `json:"id"`
	Number int64  `json:"number"`
	AtMS   int64  `json:"at_ms"`
	Error  string `json:"error,omitempty"`
}

// receive receives and completes messages with the SDK's defaults until its input ends, and prints
// one JSON line for each. An error is that of the completion, or without a text of the receive. The
// entity is a queue, or TOPIC/subscriptions/NAME.
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
	for ctx.Err() == nil {
		messages, err := receiver.ReceiveMessages(ctx, atOnce, nil)
		if err != nil && ctx.Err() == nil {
			failed := received{AtMS: time.Now().UnixMilli(), Error: fmt.Sprintf("%T: %v", err, err)}
			check(output.Encode(failed))
			time.Sleep(afterError)
		}
		now := time.Now().UnixMilli()
		for _, message := range messages {
			line := received{
				Text: string(message.Body), ID: message.MessageID,
				Number: *message.SequenceNumber, AtMS: now,
			}
			if err := receiver.CompleteMessage(context.Background(), message, nil); err != nil {
				line.Error = fmt.Sprintf("%T: %v", err, err)
			}
			check(output.Encode(line))
		}
	}
	check(client.Close(context.Background()))
}
