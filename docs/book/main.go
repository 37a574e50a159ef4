// Command book makes one site of this tree's Markdown: the index docs/README.md, the pages that it names, and
// all that these link to. The site asks no other host for anything, and opens from a folder as it does from a server.
// A link that leads nowhere is an error, so that making the site is also the check of all links.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

func main() {
	out := flag.String("out", "docs/site", "folder of the site; an earlier site there is replaced, anything else refused")
	version := flag.String("version", "", "version that the foot of each page names")
	flag.Parse()
	if err := run(os.DirFS("."), *out, *version); err != nil {
		fmt.Fprintln(os.Stderr, "book:", err)
		os.Exit(1)
	}
	fmt.Println(filepath.Join(*out, "index.html"))
}

// run reads the book out of the tree and writes the site to the folder out.
func run(tree fs.FS, out, version string) error {
	b, err := read(tree)
	if err != nil {
		return err
	}
	site, err := b.site(version)
	if err != nil {
		return err
	}
	if err := clear(out); err != nil {
		return err
	}
	for name, data := range site {
		full := filepath.Join(out, filepath.FromSlash(name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(full), 0o755), os.WriteFile(full, data, 0o644)); err != nil {
			return err
		}
	}
	return nil
}

// clear removes the earlier site. A folder that is no site, -out / say, is refused.
func clear(out string) error {
	entries, err := os.ReadDir(out)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	if _, missing := os.Stat(filepath.Join(out, searchFile)); err != nil || missing != nil {
		return fmt.Errorf("%s is not empty and holds no %s: it is not a site that may be replaced", out, searchFile)
	}
	return os.RemoveAll(out)
}
