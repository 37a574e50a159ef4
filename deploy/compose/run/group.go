package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// peerView is another gateway of the group in a gateway's status.
type peerView struct {
	Name     string `json:"name"`
	State    string `json:"state"`
	Requests int    `json:"requests"`
}

// peers lists a gateway's peers by name.
func (f *fleet) peers(ctx context.Context, gateway string) (map[string]peerView, error) {
	var report struct {
		Replicas []peerView `json:"replicas"`
	}
	if err := f.ask(ctx, gateway, "/workers", &report); err != nil {
		return nil, err
	}
	all := map[string]peerView{}
	for _, p := range report.Replicas {
		name, _, _ := strings.Cut(p.Name, ":") // the host's, which is the service's
		all[name] = p
	}
	return all, nil
}

// shares returns what a gateway lacks of the others' bookings; nil without others.
func (f *fleet) shares(ctx context.Context, gateway string) error {
	if len(f.gateways) == 1 {
		return nil
	}
	all, err := f.peers(ctx, gateway)
	if err != nil {
		return err
	}
	for _, other := range f.gateways {
		if p, here := all[other]; other != gateway && (!here || p.State != "whole") {
			return fmt.Errorf("of %s it knows %+v", other, p)
		}
	}
	if n := len(f.gateways) - 1; len(all) != n {
		return fmt.Errorf("it knows %d other gateways, not %d", len(all), n)
	}
	return f.cutOff(ctx, gateway, false)
}

// cutOff returns nil if a gateway reports that it is cut off from the others, or not, as it should.
func (f *fleet) cutOff(ctx context.Context, gateway string, should bool) error {
	text, err := f.page(ctx, gateway, "/metrics")
	if err != nil {
		return err
	}
	const metric = "\ntandem_replica_cut_off "
	switch is := strings.Contains(string(text), metric+"1\n"); {
	case !is && !strings.Contains(string(text), metric+"0\n"):
		return errors.New("it has no tandem_replica_cut_off")
	case is != should:
		return fmt.Errorf("%s is cut off from the others: %v, and should be: %v", gateway, is, should)
	}
	return nil
}

// allCutOff returns an error unless every gateway reports that it is cut off.
func allCutOff(ctx context.Context, f *fleet) (err error) {
	for _, gateway := range f.gateways {
		err = errors.Join(err, f.cutOff(ctx, gateway, true))
	}
	return err
}

// forgotten returns nil once no other gateway counts anything that a gateway has booked.
func (f *fleet) forgotten(ctx context.Context, gone string) error {
	for _, gateway := range f.gateways {
		if gateway == gone {
			continue
		}
		all, err := f.peers(ctx, gateway)
		if err != nil {
			return err
		}
		if p := all[gone]; p.Requests > 0 {
			return fmt.Errorf("%s counts %d requests of %s, which is %s", gateway, p.Requests, gone, p.State)
		}
	}
	return nil
}
