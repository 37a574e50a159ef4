package queue

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Order decides who of two waiting requests goes first. The keys of the orders here are the scores of Dynamo's
// scheduler (lib/kv-router, scheduling/policy.rs) negated, for there the highest goes first.
type Order interface {
	// Key places it in the queue, lowest first. It must depend on nothing but its arguments and must be a number, an
	// infinite one at most.
	Key(it Item, now time.Time) float64
	// Ages reports whether keys change as time passes. They are computed when a request is pushed, and only if Ages
	// is true again at drains: at every one of a short queue, and each 50 ms of a long one.
	Ages() bool
}

// order is a registered Order.
type order struct {
	help string
	make func(epoch time.Time) Order
}

var orders = make(map[string]order)

// register makes an order known under a name, from an init func of the file order_NAME.go; help is a line for the
// manual. Arrivals are measured from epoch, which is monotonic and keeps keys within a float64's precision.
func register(name, help string, make func(epoch time.Time) Order) {
	if _, taken := orders[name]; taken {
		panic("queue: two orders named " + name)
	}
	orders[name] = order{help, make}
}

// Orders is the names of all registered orders, sorted.
func Orders() []string {
	var names []string
	for name := range orders {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Help is the line that the order was registered with; empty for an unknown name.
func Help(name string) string { return orders[name].help }

// newOrder makes the order of that name.
func newOrder(name string, epoch time.Time) (Order, error) {
	if name == Auto {
		name = "fcfs"
	}
	o, ok := orders[name]
	if !ok {
		return nil, fmt.Errorf("no queue policy %q; there are %s", name, strings.Join(Orders(), ", "))
	}
	return o.make(epoch), nil
}
