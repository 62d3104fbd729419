// Package prober sends raw frames of every kind from every node of a rack to every node without pause, counts
// what arrives, and says which frames crossed tenants.
//
// A frame crossed if a node received it although, by the kernel's node_tenant map of a DPU on its way, the
// node that sent it and the node that received it had no common tenant at any instant between sending and
// receiving. The maps are read all the time, about every millisecond; what lies between two readings is
// [history.common]'s to judge. The prober never writes a map.
package prober

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"dpud/pkg/record"
)

// Station is a node that sends and receives.
type Station struct {
	Name      string
	MAC       record.MAC
	V4, V6    netip.Addr
	Interface string
	// Home is the DPU that the node hangs on. A frame passes the homes of its sender and its receiver.
	Home record.DPU
	// Inside runs a function inside the node's network namespace.
	Inside func(func() error) error
}

// Config of a prober. Everything is needed.
type Config struct {
	Stations []Station
	// Rate is how many frames are sent in a second, all kinds and stations together.
	Rate int
	// Limit ends the sending if Stop does not.
	Limit time.Duration
	// Period between two readings of the maps.
	Period time.Duration
	// Maps reads the node_tenant map of each DPU, in the order of Stations. It is called from one goroutine.
	Maps map[record.DPU]func() (Assignment, error)
}

// Prober is running until Stop.
type Prober struct {
	Config
	run       [8]byte
	endpoints []*endpoint
	histories map[record.DPU]*history

	quit    chan struct{} // ends senders
	done    chan struct{} // ends receivers and the reader of maps
	senders sync.WaitGroup
	others  sync.WaitGroup

	live []stationCounts // by sender
	last atomic.Int64    // when a frame was last received
}

// stationCounts is how often a sender's frames were sent to and received by each other station.
type stationCounts struct {
	sent, received [][kinds]atomic.Uint64
}

// Start opens the sockets and begins to send.
func Start(c Config) (*Prober, error) {
	if len(c.Stations) < 3 || c.Rate <= 0 || c.Limit <= 0 || c.Period <= 0 {
		return nil, errors.New("start prober: want at least three stations, a rate, a limit and a period")
	}
	p := &Prober{
		Config:    c,
		histories: make(map[record.DPU]*history),
		quit:      make(chan struct{}),
		done:      make(chan struct{}),
		live:      make([]stationCounts, len(c.Stations)),
	}
	for i := range p.run {
		p.run[i] = byte(rand.Uint32())
	}
	for dpu := range c.Maps {
		p.histories[dpu] = &history{}
	}
	for i := range c.Stations {
		n := len(c.Stations)
		p.live[i] = stationCounts{sent: make([][kinds]atomic.Uint64, n), received: make([][kinds]atomic.Uint64, n)}
		e, err := open(&c.Stations[i])
		if err != nil {
			p.closeSockets()
			return nil, fmt.Errorf("start prober at %s: %w", c.Stations[i].Name, err)
		}
		p.endpoints = append(p.endpoints, e)
	}
	p.readMaps()
	p.others.Go(p.watchMaps)
	for i := range p.endpoints {
		p.others.Go(func() { p.receive(i) })
		p.senders.Go(func() { p.send(i) })
	}
	return p, nil
}

func (p *Prober) closeSockets() {
	for _, e := range p.endpoints {
		e.close()
	}
}

// Stop ends the sending, waits until nothing more arrives, and reports. It is called once.
func (p *Prober) Stop() (*Report, error) {
	close(p.quit)
	p.senders.Wait()
	// Nothing is on its way once nothing has arrived for a while.
	const quiet, most = 100 * time.Millisecond, 3 * time.Second
	for stopped := now(); now()-max(p.last.Load(), stopped) < int64(quiet) && now()-stopped < int64(most); {
		time.Sleep(quiet / 10)
	}
	close(p.done)
	p.others.Wait()
	p.readMaps()
	defer p.closeSockets()
	return p.report()
}

// Sent returns how many frames of a kind the station at index from has sent to the one at index to.
func (p *Prober) Sent(from, to int, k Kind) uint64 { return p.live[from].sent[to][k].Load() }

// Received returns how many frames of a kind, sent by the station at index from, the one at index to has
// received so far, whoever was meant.
func (p *Prober) Received(from, to int, k Kind) uint64 { return p.live[from].received[to][k].Load() }

// shot is one frame to send: what, and to whom.
type shot struct {
	to   int
	kind Kind
}

// send sends frames of every kind to every other station in turn, evenly spaced.
func (p *Prober) send(from int) {
	e := p.endpoints[from]
	var plan []shot
	for _, k := range Kinds() {
		for to := range p.Stations {
			if to != from {
				plan = append(plan, shot{to, k})
			}
		}
	}
	start := time.Now()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	var sent uint64
	for {
		select {
		case <-p.quit:
			return
		case <-tick.C:
		}
		elapsed := time.Since(start)
		if elapsed > p.Limit {
			return
		}
		due := uint64(elapsed.Seconds() * float64(p.Rate) / float64(len(p.Stations)))
		// What a long pause of the machine left behind is not made up for: that would be a burst.
		if due > sent+64 {
			start, sent = time.Now(), 0
			continue
		}
		for ; sent < due; sent++ {
			p.shoot(e, from, plan)
		}
	}
}

func (p *Prober) shoot(e *endpoint, from int, plan []shot) {
	s := plan[int(e.seq)%len(plan)]
	// The third station changes from round to round.
	other := (max(from, s.to) + 1 + int(e.seq)/len(plan)) % len(p.Stations)
	for other == from || other == s.to {
		other = (other + 1) % len(p.Stations)
	}
	t := stamp{sender: uint8(from), meant: uint8(s.to), kind: s.kind, seq: e.seq, sent: now()}
	st := p.Stations
	frame := build(s.kind, &st[from], &st[s.to], &st[other], t.appendTo(nil, p.run))
	e.seq++
	if err := e.write(frame); err != nil {
		e.fail(err)
		return
	}
	p.live[from].sent[s.to][s.kind].Add(1)
}

// receive counts every frame of this run that arrives at a station's interface.
func (p *Prober) receive(at int) {
	e := p.endpoints[at]
	buf := make([]byte, 2048)
	for {
		select {
		case <-p.done:
			return
		default:
		}
		n, when, err := e.read(buf)
		if err != nil {
			e.fail(err)
			return
		}
		s, ok := readStamp(buf[:n], p.run)
		if !ok || int(s.sender) >= len(p.Stations) || int(s.sender) == at || s.kind >= kinds {
			continue
		}
		p.last.Store(now())
		p.live[s.sender].received[at][s.kind].Add(1)
		e.arrivals = append(e.arrivals, arrival{stamp: s, received: max(when, s.sent)})
	}
}

// watchMaps reads the maps until the prober is done, on a thread that goes before everything else: the further
// apart two readings are, the less can be said of the frames between them.
func (p *Prober) watchMaps() {
	runtime.LockOSThread() // never unlocked: the thread ends, and with it its priority
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), -20)
	pause := unix.NsecToTimespec(p.Period.Nanoseconds())
	for {
		select {
		case <-p.done:
			return
		default:
			p.readMaps()
		}
		// A shorter sleep, after a signal, only reads sooner.
		_ = unix.Nanosleep(&pause, nil)
	}
}

func (p *Prober) readMaps() {
	for dpu, read := range p.Maps {
		s := sample{a: now()}
		state, err := read()
		if err == nil {
			s.state = state
		}
		s.b = now()
		p.histories[dpu].add(s)
	}
}
