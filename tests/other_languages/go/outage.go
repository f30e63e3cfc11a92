package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	sb "github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

const (
	inBatch = 3
	pause   = 50 * time.Millisecond
)

// sent is what the program prints about one send.
type sent struct {
	Texts   []string `json:"texts"`
	HasIDs  bool     `json:"has_ids"`
	BeganMS int64    `json:"began_ms"`
	EndedMS int64    `json:"ended_ms"`
	Error   string   `json:"error,omitempty"`
}

// outage sends numbered messages with the SDK's defaults until its input ends, and prints one JSON
// line for each send. In turn: one message with an id of its own, one without, a batch with ids, a
// batch without. `name` begins the text of every message.
func outage(queue, name string) {
	ctx := context.Background()
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	client := must(sb.NewClientFromConnectionString(text, nil))
	sender := must(client.NewSender(queue, nil))
	output := json.NewEncoder(os.Stdout)
	number := 0
	for turn := 0; ; turn++ {
		select {
		case <-ended:
			check(client.Close(ctx))
			return
		case <-time.After(pause):
		}
		hasIDs, isBatch := turn%2 == 0, turn%4 >= 2
		line := sent{HasIDs: hasIDs, BeganMS: time.Now().UnixMilli()}
		var messages []*sb.Message
		for each := 0; each < 1 || isBatch && each < inBatch; each++ {
			body := fmt.Sprintf("%s-%d", name, number)
			number++
			message := &sb.Message{Body: []byte(body)}
			if hasIDs {
				message.MessageID = &body
			}
			line.Texts = append(line.Texts, body)
			messages = append(messages, message)
		}
		if err := sendAll(ctx, sender, messages, isBatch); err != nil {
			line.Error = fmt.Sprintf("%T: %v", err, err)
		}
		line.EndedMS = time.Now().UnixMilli()
		check(output.Encode(line))
	}
}

func sendAll(ctx context.Context, sender *sb.Sender, messages []*sb.Message, isBatch bool) error {
	if !isBatch {
		return sender.SendMessage(ctx, messages[0], nil)
	}
	batch, err := sender.NewMessageBatch(ctx, nil)
	if err != nil {
		return err
	}
	for _, each := range messages {
		if err := batch.AddMessage(each, nil); err != nil {
			return err
		}
	}
	return sender.SendMessageBatch(ctx, batch, nil)
}
