// A tour of the Go SDK against a broker. Prints one JSON line for each step.
//
// The connection string is in SERVICEBUS_CONNECTION_STRING. With UseDevelopmentEmulator=true the
// tour uses no TLS; otherwise SSL_CERT_FILE names the authority to trust. With arguments the program
// is not a tour but a client in an outage: with two it sends, with one it receives.
package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	sb "github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

const (
	wait = 20 * time.Second
	// How long a receiver that must stay empty is watched.
	brief = 500 * time.Millisecond
)

var (
	text  = os.Getenv("SERVICEBUS_CONNECTION_STRING")
	plain = strings.Contains(text, "UseDevelopmentEmulator=true")
)

// clientOptions has no second attempt: the first error is the one to check. With a port in the
// connection string the SDK expects a certificate for "localhost:5700"; ServerName mends that.
func clientOptions() *sb.ClientOptions {
	return &sb.ClientOptions{
		RetryOptions: sb.RetryOptions{MaxRetries: -1},
		TLSConfig:    &tls.Config{ServerName: "localhost"},
	}
}

type step struct {
	name string
	run  func(*tour)
}

type tour struct {
	ctx    context.Context
	admin  *admin.Client
	client *sb.Client
}

// failure is what a step panics with; the runner turns it into the step's error.
type failure struct{ text string }

func fail(format string, arguments ...any) { panic(failure{fmt.Sprintf(format, arguments...)}) }

func check(err error) {
	if err != nil {
		fail("%T: %v", err, err)
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func equal(what string, got, wanted any) {
	if !reflect.DeepEqual(got, wanted) {
		fail("%s is %v, not %v", what, got, wanted)
	}
}

func ptr[T any](value T) *T { return &value }

// withoutTLS is needed without TLS: the administration client of the SDK always uses https.
type withoutTLS struct{}

func (withoutTLS) Do(request *http.Request) (*http.Response, error) {
	request.URL.Scheme = "http"
	return http.DefaultClient.Do(request)
}

func newTour(ctx context.Context) *tour {
	var options *admin.ClientOptions
	if plain {
		var transport policy.Transporter = withoutTLS{}
		options = &admin.ClientOptions{ClientOptions: azcore.ClientOptions{Transport: transport}}
	}
	return &tour{
		ctx:    ctx,
		admin:  must(admin.NewClientFromConnectionString(text, options)),
		client: must(sb.NewClientFromConnectionString(text, clientOptions())),
	}
}

// queue creates a queue; it returns a sender and a receiver for it.
func (t *tour) queue(name string, properties *admin.QueueProperties) (*sb.Sender, *sb.Receiver) {
	must(t.admin.CreateQueue(t.ctx, name, &admin.CreateQueueOptions{Properties: properties}))
	return t.sender(name), must(t.client.NewReceiverForQueue(name, nil))
}

func (t *tour) sender(name string) *sb.Sender { return must(t.client.NewSender(name, nil)) }

func (t *tour) deadLetters(name string) *sb.Receiver {
	options := &sb.ReceiverOptions{SubQueue: sb.SubQueueDeadLetter}
	return must(t.client.NewReceiverForQueue(name, options))
}

// send sends messages with these texts, one by one.
func (t *tour) send(sender *sb.Sender, texts ...string) {
	for _, each := range texts {
		check(sender.SendMessage(t.ctx, &sb.Message{Body: []byte(each)}, nil))
	}
}

// receives is what a receiver and a session receiver share.
type receives interface {
	ReceiveMessages(context.Context, int, *sb.ReceiveMessagesOptions) ([]*sb.ReceivedMessage, error)
}

func (t *tour) receive(receiver receives, count int) []*sb.ReceivedMessage {
	ctx, cancel := context.WithTimeout(t.ctx, wait)
	defer cancel()
	var messages []*sb.ReceivedMessage
	for len(messages) < count {
		some, err := receiver.ReceiveMessages(ctx, count-len(messages), nil)
		if err != nil {
			fail("%d of %d messages arrived: %v", len(messages), count, err)
		}
		messages = append(messages, some...)
	}
	return messages
}

func (t *tour) one(receiver receives) *sb.ReceivedMessage { return t.receive(receiver, 1)[0] }

func (t *tour) staysEmpty(receiver receives) {
	ctx, cancel := context.WithTimeout(t.ctx, brief)
	defer cancel()
	if messages, err := receiver.ReceiveMessages(ctx, 1, nil); err == nil {
		fail("%q is left", bodies(messages))
	}
}

func bodies(messages []*sb.ReceivedMessage) []string {
	texts := []string{}
	for _, each := range messages {
		texts = append(texts, string(each.Body))
	}
	return texts
}

// attempt runs one step; it returns the error's text, empty if there was none.
func attempt(each step, t *tour) (problem string) {
	defer func() {
		if caught := recover(); caught != nil {
			problem = fmt.Sprint(caught)
			if failed, is := caught.(failure); is {
				problem = failed.text
			}
		}
	}()
	each.run(t)
	return ""
}

func main() {
	switch len(os.Args) {
	case 2:
		receive(os.Args[1])
		return
	case 3:
		outage(os.Args[1], os.Args[2])
		return
	}
	t := newTour(context.Background())
	output := json.NewEncoder(os.Stdout)
	for _, each := range steps {
		began := time.Now()
		line := map[string]any{"step": each.name}
		if problem := attempt(each, t); problem != "" {
			line["error"] = problem
		}
		line["seconds"] = time.Since(began).Seconds()
		check(output.Encode(line))
	}
	check(t.client.Close(t.ctx))
}
