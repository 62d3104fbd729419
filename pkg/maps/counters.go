package maps

import "fmt"

// Counter counts the packets with one verdict at one hook, since the maps were made.
type Counter struct {
	Hook    string // "ingress": XDP, on every port; "egress": tc, on node ports, where a packet is judged again
	Reason  Reason
	Packets uint64
	Bytes   uint64
}

// Counters returns the counters of every hook and reason, zero ones included, in the order of the reasons. Each
// packet is in exactly one counter of each hook that it met.
func (t *Tables) Counters() ([]Counter, error) {
	var counters []Counter
	for r := range Reasons() {
		var cpus []datapathTraffic
		if err := t.maps.Reasons.Lookup(uint32(r), &cpus); err != nil {
			return nil, fmt.Errorf("read counters: %w", err)
		}
		in, out := Counter{Hook: "ingress", Reason: r}, Counter{Hook: "egress", Reason: r}
		for _, c := range cpus {
			in.Packets += c.IngressPackets
			in.Bytes += c.IngressBytes
			out.Packets += c.EgressPackets
			out.Bytes += c.EgressBytes
		}
		counters = append(counters, in, out)
	}
	return counters, nil
}
