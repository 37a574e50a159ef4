package replay

import (
	"errors"
	"io"
	"os"
)

// Files are the files of a report, opened before the run that fills them, so that
// a path that cannot be written is known before an hour of load and not after it.
type Files []*os.File

// OpenFiles creates the files; an empty path is none.
func OpenFiles(paths ...string) (Files, error) {
	var files Files
	for _, path := range paths {
		var f *os.File
		if path != "" {
			var err error
			if f, err = os.Create(path); err != nil {
				files.Close()
				return nil, err
			}
		}
		files = append(files, f)
	}
	return files, nil
}

// Write fills each file by the func in its place.
func (files Files) Write(each ...func(io.Writer) error) error {
	var errs []error
	for i, f := range files {
		if f != nil {
			errs = append(errs, each[i](f), f.Close())
		}
	}
	return errors.Join(errs...)
}

// Close closes the files that Write did not reach.
func (files Files) Close() {
	for _, f := range files {
		_ = f.Close() // nil or closed is an error without meaning here
	}
}
