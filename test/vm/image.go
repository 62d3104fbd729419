package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// image is a file system in memory, written as a cpio archive of the format "newc"
// (Documentation/driver-api/early-userspace/buffer-format.rst of the kernel).
type image struct {
	files map[string]file
}

type file struct {
	source  string // path on this machine, or
	content string
	mode    fs.FileMode
}

func (i *image) add(path string, f file) {
	if i.files == nil {
		i.files = make(map[string]file)
	}
	for dir := filepath.Dir(path); dir != "."; dir = filepath.Dir(dir) {
		i.files[dir] = file{mode: fs.ModeDir | 0o755}
	}
	i.files[path] = f
}

// addTree adds a folder with all that is in it; one that is missing adds nothing.
func (i *image) addTree(path, source string) error {
	return filepath.WalkDir(source, func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && p == source {
			return nil
		}
		if err != nil || d.IsDir() {
			return err
		}
		inside, err := filepath.Rel(source, p)
		if err == nil {
			i.add(filepath.Join(path, inside), file{source: p, mode: 0o644})
		}
		return err
	})
}

// write writes the archive to a file.
func (i *image) write(path string) (err error) {
	out, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	w := &archive{w: bufio.NewWriterSize(out, 1<<20)}
	paths := make([]string, 0, len(i.files))
	for p := range i.files {
		paths = append(paths, p)
	}
	slices.Sort(paths) // a folder comes before what is in it
	for _, p := range paths {
		if err := w.add(p, i.files[p]); err != nil {
			return fmt.Errorf("write image: add %s: %w", p, err)
		}
	}
	w.entry("TRAILER!!!", 0, 0)
	return errors.Join(w.err, w.w.Flush())
}

// archive writes entries and keeps its first error.
type archive struct {
	w      *bufio.Writer
	inode  int
	offset int64
	err    error
}

func (a *archive) add(path string, f file) error {
	const folder, regular = 0o040000, 0o100000
	if f.mode.IsDir() {
		a.entry(path, folder|f.mode.Perm(), 0)
		return a.err
	}
	if f.source == "" {
		a.entry(path, regular|f.mode.Perm(), int64(len(f.content)))
		a.copy(strings.NewReader(f.content))
		return a.err
	}
	in, err := os.Open(f.source)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	a.entry(path, regular|f.mode.Perm(), info.Size())
	a.copy(in)
	return a.err
}

// entry writes a header and the name, each part padded to 4 bytes.
func (a *archive) entry(name string, mode fs.FileMode, size int64) {
	a.inode++
	a.printf("070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		a.inode, uint32(mode), 0, 0, 1, 0, size, 0, 0, 0, 0, len(name)+1, 0)
	a.printf("%s\x00", name)
	a.pad()
}

func (a *archive) printf(format string, args ...any) {
	n, err := fmt.Fprintf(a.w, format, args...)
	a.offset += int64(n)
	a.err = errors.Join(a.err, err)
}

func (a *archive) copy(r io.Reader) {
	n, err := io.Copy(a.w, r)
	a.offset += n
	a.err = errors.Join(a.err, err)
	a.pad()
}

func (a *archive) pad() {
	for a.offset%4 != 0 && a.err == nil {
		a.err = a.w.WriteByte(0)
		a.offset++
	}
}
