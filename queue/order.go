package queue

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Order decides which of two waiting requests goes first. The keys are the negated scores of Dynamo's scheduler
// (lib/kv-router, scheduling/policy.rs), where the highest goes first.
type Order interface {
	// Key orders requests, lowest first. It must be pure and must not return NaN.
	Key(it Item, now time.Time) float64
	// Ages reports whether keys change with time: then they are updated at each drain, of a long queue every 50 ms.
	Ages() bool
}

// order is a registered Order.
type order struct {
	help string
	make func(epoch time.Time) Order
}

var orders = make(map[string]order)

// register adds an order, from an init func of the file order_NAME.go; help is one line for the manual. Arrivals are
// measured from epoch, which is monotonic and keeps keys within a float64's precision.
func register(name, help string, make func(epoch time.Time) Order) {
	if _, taken := orders[name]; taken {
		panic("queue: two orders named " + name)
	}
	orders[name] = order{help, make}
}

// Orders returns the names of all registered orders, sorted.
func Orders() []string {
	var names []string
	for name := range orders {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Help returns the help of an order, empty for an unknown name.
func Help(name string) string { return orders[name].help }

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
