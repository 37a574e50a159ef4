package main

import (
	"fmt"
	"os"
	"strings"
)

// The measured section of a document is between two lines; people write the rest.
const (
	sectionBegin = "<!-- measured by `go run ./bench -write-docs`: begin -->"
	sectionEnd   = "<!-- measured: end -->"
)

// readDocument returns a document that has a measured section.
func readDocument(name string) (string, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}
	if _, err := replaceSection(string(text), ""); err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return string(text), nil
}

// writeDocument puts the measured section into a document.
func writeDocument(name, section string) error {
	text, err := readDocument(name)
	if err != nil {
		return err
	}
	if text, err = replaceSection(text, section); err != nil {
		return err
	}
	return os.WriteFile(name, []byte(text), 0o644)
}

// replaceSection returns the document with another measured section. The error is that it does not have exactly one.
func replaceSection(document, section string) (string, error) {
	if strings.Count(document, sectionBegin) != 1 || strings.Count(document, sectionEnd) != 1 {
		return "", fmt.Errorf("it does not have the lines %q and %q, once each", sectionBegin, sectionEnd)
	}
	before, rest, _ := strings.Cut(document, sectionBegin)
	_, after, ok := strings.Cut(rest, sectionEnd)
	if !ok {
		return "", fmt.Errorf("%q comes before %q", sectionEnd, sectionBegin)
	}
	if section != "" {
		section = strings.TrimSpace(section) + "\n\n"
	}
	return before + sectionBegin + "\n\n" + section + sectionEnd + after, nil
}
