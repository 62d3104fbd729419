package gossip

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"dpud/pkg/record"
)

// A message is a byte that names its type and then, as its type needs them: the sender's name, a bit map of
// buckets, digests, and items to the end. Integers are unsigned varints, except digests and bit maps (8 bytes,
// little endian); strings are preceded by their length.
type messageType byte

const (
	// typeRecord is a broadcast: one register, whole.
	typeRecord messageType = iota + 1
	// typeAnnounce is a broadcast: the sender has news of these versions.
	typeAnnounce
	// typeDigest carries the digests of the sender's buckets.
	typeDigest
	// typeVersions carries versions that the sender holds. For the buckets in its bit map they are all that the sender
	// holds, and it asks which others the receiver has.
	typeVersions
	// typePull asks for registers.
	typePull
	// typeRecords answers a pull: registers, whole.
	typeRecords
)

// layout says which parts a type has.
var layout = map[messageType]struct{ from, buckets, digests, versions, payloads bool }{
	typeRecord:   {versions: true, payloads: true},
	typeAnnounce: {from: true, versions: true},
	typeDigest:   {from: true, digests: true},
	typeVersions: {from: true, buckets: true, versions: true},
	typePull:     {from: true},
	typeRecords:  {versions: true, payloads: true},
}

const (
	// numBuckets divides the versions for comparing; the bit map is a uint64.
	numBuckets = 64
	// maxMessage bounds a message in bytes, and so a record; longer ones are not sent and not parsed. Parsing
	// one allocates at most about 12 times as much (an item of 8 bytes takes 88 in memory).
	maxMessage = 4 << 20
	// chunk is the size from which a list goes on in a further message.
	chunk = 256 << 10
)

type digests [numBuckets]record.Digest

type item struct {
	key     record.Key
	version record.Version
	payload []byte
}

type message struct {
	typ     messageType
	from    string
	buckets uint64
	digests digests
	items   []item
}

// bucketOf is the bucket of a register.
func bucketOf(k record.Key) int {
	return int(record.Digest(0).Add(k, record.Version{}) % numBuckets)
}

// append returns b with the encoded message at its end.
func (m *message) append(b []byte) []byte {
	l := layout[m.typ]
	b = append(b, byte(m.typ))
	if l.from {
		b = appendString(b, m.from)
	}
	if l.buckets {
		b = binary.LittleEndian.AppendUint64(b, m.buckets)
	}
	if l.digests {
		for _, d := range m.digests {
			b = binary.LittleEndian.AppendUint64(b, uint64(d))
		}
	}
	for _, it := range m.items {
		b = it.append(b, m.typ)
	}
	return b
}

// append returns b with the item at its end, as it is in messages of a type.
func (it *item) append(b []byte, t messageType) []byte {
	l := layout[t]
	b = append(b, byte(it.key.Kind))
	b = appendString(b, string(it.key.Name))
	b = binary.AppendUvarint(b, uint64(it.key.Tenant))
	b = binary.AppendUvarint(b, uint64(it.key.Node))
	if l.versions {
		for _, x := range it.version {
			b = binary.AppendUvarint(b, x)
		}
	}
	if l.payloads {
		b = appendString(b, string(it.payload))
	}
	return b
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

var errTruncated = errors.New("truncated")

// parse decodes a message. Payloads alias b.
func parse(b []byte) (*message, error) {
	if len(b) == 0 {
		return nil, fmt.Errorf("parse message: %w", errTruncated)
	}
	if len(b) > maxMessage {
		return nil, fmt.Errorf("parse message: %d bytes, want at most %d", len(b), maxMessage)
	}
	m := &message{typ: messageType(b[0])}
	l, ok := layout[m.typ]
	if !ok {
		return nil, fmt.Errorf("parse message: unknown type %d", b[0])
	}
	r := reader{b: b[1:]}
	if l.from {
		m.from = string(r.bytes(maxName))
	}
	if l.buckets {
		m.buckets = r.uint64()
	}
	if l.digests {
		for i := range m.digests {
			m.digests[i] = record.Digest(r.uint64())
		}
	}
	for r.err == nil && len(r.b) > 0 {
		it := item{key: record.Key{
			Kind:   record.Kind(r.byte()),
			Name:   record.DPU(r.bytes(math.MaxUint8)),
			Tenant: record.TenantID(r.uvarint(math.MaxUint32)),
			Node:   record.NodeID(r.uvarint(math.MaxUint32)),
		}}
		if l.versions {
			for i := range it.version {
				it.version[i] = r.uvarint(math.MaxUint64)
			}
		}
		if l.payloads {
			it.payload = r.bytes(maxMessage)
		}
		m.items = append(m.items, it)
	}
	if r.err != nil {
		return nil, fmt.Errorf("parse message of type %d: %w", m.typ, r.err)
	}
	return m, nil
}

// reader takes parts off the front of b. After the first error it returns zeros.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.b = nil
}

func (r *reader) take(n uint64) []byte {
	if n > uint64(len(r.b)) {
		r.fail(errTruncated)
		return nil
	}
	p := r.b[:n:n]
	r.b = r.b[n:]
	return p
}

func (r *reader) byte() byte {
	if p := r.take(1); p != nil {
		return p[0]
	}
	return 0
}

func (r *reader) uint64() uint64 {
	if p := r.take(8); p != nil {
		return binary.LittleEndian.Uint64(p)
	}
	return 0
}

func (r *reader) uvarint(limit uint64) uint64 {
	x, n := binary.Uvarint(r.b)
	switch {
	case n == 0:
		r.fail(errTruncated)
	case n < 0 || x > limit:
		r.fail(errors.New("number too large"))
	default:
		r.b = r.b[n:]
		return x
	}
	return 0
}

func (r *reader) bytes(limit uint64) []byte { return r.take(r.uvarint(limit)) }
