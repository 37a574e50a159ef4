package setting

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// checkForm checks a text, or an item of a list, by the form of its tag:
//
//	host             an IP address or a host name, without a port
//	hostport         HOST:PORT; an empty host is every address
//	address SCHEME…  HOST:PORT, with one of the schemes in front or none; several separated by commas
//	url SCHEME…      SCHEME://HOST, with a port and a path or without
//	path             an absolute path such as etcd's keys have
//
// Text that is empty by default may be empty. Errors leave out passwords.
func checkForm(form, text string) error {
	name, rest, _ := strings.Cut(form, " ")
	schemes := strings.Fields(rest)
	switch name {
	case "host":
		return host(text)
	case "hostport":
		return hostPort(text)
	case "address":
		items, _ := parseList(text) // which takes any text
		for _, item := range items {
			if err := address(item, schemes); err != nil {
				return err
			}
		}
		return nil
	case "url":
		// The owner of the setting checks what follows a comma.
		at, _, _ := strings.Cut(text, ",")
		if !strings.Contains(at, "://") {
			return fmt.Errorf("%s is not an address, as %s://HOST:PORT", Quote(withoutUser(at)), schemes[0])
		}
		return address(at, schemes)
	case "path":
		return path(text)
	}
	panic("setting: there is no form " + name)
}

func host(text string) error {
	if _, err := netip.ParseAddr(text); err == nil {
		return nil
	}
	letters := "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._"
	if text == "" || strings.Trim(text, letters) != "" {
		return fmt.Errorf("%s is not an IP address or a host name", Quote(text))
	}
	return nil
}

func hostPort(text string) error {
	name, port, err := net.SplitHostPort(text)
	if err == nil && name != "" {
		err = host(name)
	}
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fmt.Errorf("%s is not HOST:PORT", Quote(text))
	}
	return nil
}

func address(text string, schemes []string) error {
	if strings.ContainsAny(text, " \t\r\n\v\f") {
		return errors.New("an address has no blanks; in a list each is an item")
	}
	whole := text
	if !strings.Contains(text, "://") {
		whole = schemes[0] + "://" + text
	}
	u, err := url.Parse(whole)
	switch {
	case err != nil || u.Hostname() == "":
		return fmt.Errorf("%s is not an address, as %s://HOST:PORT", Quote(withoutUser(text)), schemes[0])
	case !slices.Contains(schemes, u.Scheme):
		return fmt.Errorf("the scheme of %s is none of %s", Quote(withoutUser(text)), strings.Join(schemes, ", "))
	}
	return nil
}

func path(text string) error {
	if len(text) < 2 || text[0] != '/' || strings.HasSuffix(text, "/") {
		return errors.New(`must begin with "/", name something and not end with "/"`)
	}
	return nil
}

// withoutUser returns an address without what precedes its @.
func withoutUser(text string) string { return text[strings.LastIndex(text, "@")+1:] }
