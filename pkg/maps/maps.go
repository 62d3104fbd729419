// Package maps is the data plane as Go sees it: it loads, pins and attaches the programs of bpf/, reads and
// writes their maps one entry at a time, and asks the kernel whether what should be attached still is.
//
// It decides nothing about assignments: what to write and in which order is the agent's (package agent), except
// that it never lets an entry take a freed one's memory while a program may still read it ([Datapath.Put]).
//
// Maps, programs and links are pinned in a folder of a bpffs and outlive the process: [Datapath.Close] only
// closes file descriptors, and whoever loads the folder next adopts what it finds. Only [Unload] takes
// enforcement away. Each folder is a data plane of its own, so that several may run on one machine, each in a
// network namespace of its own; everything that names an interface runs in the caller's network namespace.
package maps

import (
	"errors"
	"os"
	"sync"

	"github.com/cilium/ebpf"
)

// Errors that callers may match.
var (
	// ErrExists: the map holds the key already. Entries are never updated in place: delete, then put.
	ErrExists = errors.New("entry exists")
	// ErrFull: the map holds as many entries as it was made for.
	ErrFull = errors.New("map is full: raise max_nodes, which needs `dpud unload` and a restart")
	// ErrLayout: the folder's maps are of another layout, or smaller than asked for, and can't be adopted.
	ErrLayout = errors.New("pinned maps don't fit this version: reclaim or drain the DPU's nodes, run `dpud unload` and start again")
	// ErrLocked: another process has loaded the folder.
	ErrLocked = errors.New("pin folder is in use by another dpud: stop it, or give this one another pin folder")
	// ErrElsewhere: the programs guard interfaces that the caller's network namespace doesn't have.
	ErrElsewhere = errors.New("the programs pinned there guard ports of another network namespace: run dpud in that one (`nsenter --net=/run/netns/NAME dpud run`), or run `dpud unload` there first")
	// ErrPrivateMount: the bpffs is, or would be, mounted for this process alone.
	ErrPrivateMount = errors.New("this process has mounts of its own and no bpffs of the host's, so that enforcement would end with it: run `mount -t bpf bpf /sys/fs/bpf` on the host, and start dpud with `nsenter --net=/run/netns/NAME` instead of `ip netns exec NAME` (in a container: share the host's /sys/fs/bpf)")
	// ErrNotLoaded: there is no data plane in the folder.
	ErrNotLoaded = errors.New("no data plane is pinned there: is the pin folder right, and has dpud run?")
	// ErrUnguarded: the kernel doesn't run our program on a port ([Datapath.Check]).
	ErrUnguarded = errors.New("port is unguarded")
)

// DefaultMaxNodes is the number of nodes that maps are made for by default; they take about 2 MB then.
const DefaultMaxNodes = 4096

// Options for [Load].
type Options struct {
	// MaxNodes is the number of nodes that the maps have room for: as many MACs, twice as many IPv4 and four
	// times as many IPv6 addresses. Memory is taken at once, about 0.5 KB for each. 0 is DefaultMaxNodes.
	MaxNodes uint32
}

// Datapath is a loaded data plane: the maps for reading and writing, and the programs to attach. Its methods are
// safe for concurrent use, but there must be one writer: [Load] holds a lock on the folder until Close.
type Datapath struct {
	*Tables
	pin      string
	lock     *os.File
	programs datapathPrograms
	ids      map[*ebpf.Program]ebpf.ProgramID // the kernel's, of programs
	inner    *ebpf.Map                        // what Barrier stores
	noTCX    bool                             // attach by clsact even where tcx is there

	mu    sync.Mutex // serialises writes and attachments
	dirty bool       // something was deleted since the last barrier
	ports map[int]Attachment
}
