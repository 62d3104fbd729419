package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	"dpud/pkg/api/dpudv1"
	"dpud/pkg/api/dpudv1/dpudv1connect"
	"dpud/pkg/table"
)

// mapView is one entry of a kernel map. What the map does not have is left out; names are not in the kernel.
type mapView struct {
	Map        string  `json:"map"`
	Key        string  `json:"key"`
	Node       uint32  `json:"node,omitempty"`
	NodeName   string  `json:"node_name,omitempty"`
	Tenant     uint32  `json:"tenant,omitempty"`
	TenantName string  `json:"tenant_name,omitempty"`
	Epoch      uint64  `json:"epoch,omitempty"`
	Generation uint64  `json:"generation,omitempty"`
	Revision   uint64  `json:"revision,omitempty"`
	Ifindex    uint32  `json:"ifindex,omitempty"`
	Port       string  `json:"port,omitempty"`
	VLAN       *uint32 `json:"vlan,omitempty"`
	MAC        string  `json:"mac,omitempty"`
}

var mapNames = []string{
	table.NodeTenant.String(), table.NodeState.String(), table.Endpoint4.String(), table.Endpoint6.String(),
	table.EndpointMAC.String(), table.Service4.String(), table.Service6.String(),
}

func (a *app) mapCommand() *cli.Command {
	return group(&cli.Command{
		Name: "map", Usage: "what a DPU's kernel holds",
		Subcommands: []*cli.Command{leaf(&cli.Command{
			Name:  "dump",
			Usage: "print the entries of the kernel's maps",
			Description: "On a DPU it reads the pinned maps themselves, even with dpud dead; with --dpu it asks that DPU\n" +
				"through the controller. It prints what the kernel holds and nothing else: names in parentheses\n" +
				"are looked up elsewhere, and missing when nobody answers at once.",
			Flags: []cli.Flag{
				dpuFlag, pinFlag,
				&cli.StringSliceFlag{Name: "map", Usage: "only this `MAP` (may be repeated): " + strings.Join(mapNames, ", ")},
			},
			Action: a.dump,
		})},
	})
}

func (a *app) dump(c *cli.Context) error {
	far, err := remote(c)
	if err != nil {
		return err
	}
	only := c.StringSlice("map")
	for _, m := range only {
		if !slices.Contains(mapNames, m) {
			return usagef("ctl map dump: there is no map %q; there are %s", m, list(mapNames))
		}
	}
	read := a.dumpPinned
	if far {
		read = a.dumpDPU
	}
	entries, err := read(c, only)
	if err != nil {
		return err
	}
	slices.SortStableFunc(entries, func(x, y mapView) int { return slices.Index(mapNames, x.Map) - slices.Index(mapNames, y.Map) })
	v := struct {
		Entries []mapView `json:"entries"`
	}{entries}
	return a.print(c, v, func(w io.Writer) error {
		t := rows{{"MAP", "KEY", "VALUE"}}
		for _, e := range v.Entries {
			t = append(t, []string{e.Map, e.key(), e.value()})
		}
		return t.write(w)
	})
}

func (a *app) dumpDPU(c *cli.Context, only []string) ([]mapView, error) {
	cl, err := a.dial(c)
	if err != nil {
		return nil, err
	}
	ctx, cancel := within(c, answerTimeout)
	defer cancel()
	dpu := c.String("dpu")
	r, err := cl.DumpMaps(ctx, connect.NewRequest(&dpudv1.ControllerDumpMapsRequest{Dpu: dpu, Request: &dpudv1.DumpMapsRequest{Maps: only}}))
	if err != nil {
		return nil, cl.callError(err, "map dump of "+dpu, reads)
	}
	return views(r.Msg.GetEntries(), viewEntryOf), nil
}

// viewEntryOf shows an entry as dpud sent it.
func viewEntryOf(e *dpudv1.MapEntry) mapView {
	v := mapView{
		Map: e.GetMap(), Key: e.GetKey(), Node: e.GetNode(), NodeName: e.GetNodeName(), Tenant: e.GetTenant(), TenantName: e.GetTenantName(),
		Epoch: e.GetEpoch(), Generation: e.GetGeneration(), Revision: e.GetRevision(), Ifindex: e.GetIfindex(), Port: e.GetPort(), MAC: e.GetMac(),
	}
	if strings.HasPrefix(v.Map, "endpoint") {
		vlan := e.GetVlan()
		v.VLAN = &vlan
	}
	return v
}

func (a *app) dumpPinned(c *cli.Context, only []string) ([]mapView, error) {
	m, pin, err := a.open(c)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	tables, err := m.Read()
	if err != nil {
		return nil, err
	}
	keys := make([]table.Key, 0, len(tables))
	for k := range tables {
		if len(only) == 0 || slices.Contains(only, k.Map.String()) {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, table.CompareKeys)
	entries := make([]mapView, len(keys))
	for i, k := range keys {
		entries[i] = viewPinned(k, tables[k])
	}
	a.resolve(c, pin, entries)
	return entries, nil
}

// viewPinned shows an entry as the kernel holds it.
func viewPinned(k table.Key, v table.Value) mapView {
	_, key, _ := strings.Cut(strings.TrimSuffix(k.String(), "]"), "[")
	e := mapView{
		Map: k.Map.String(), Key: key, Node: uint32(v.Node), Tenant: uint32(v.Tenant),
		Epoch: uint64(v.Epoch), Generation: uint64(v.Generation), Revision: uint64(v.Revision), Ifindex: v.Ifindex,
	}
	switch k.Map {
	case table.NodeState:
		e.Node = uint32(k.Node)
	case table.Endpoint4, table.Endpoint6, table.EndpointMAC:
		vlan := uint32(v.VLAN)
		e.VLAN, e.MAC = &vlan, v.MAC.String()
	case table.Service4, table.Service6:
		e.MAC = v.MAC.String()
	}
	return e
}

// resolve fills in names as far as the machine's dpud or the controller answer at once.
func (a *app) resolve(c *cli.Context, pin string, entries []mapView) {
	ctx, cancel := context.WithTimeout(c.Context, namesTimeout)
	defer cancel()
	n := namesFromDPUD(ctx, filepath.Join(a.env.RunFolder, filepath.Base(pin)+".sock"))
	for _, e := range entries {
		if n.nodes[e.Node] == "" && e.Node != 0 {
			if cl, err := a.dial(c); err == nil {
				n.fromController(ctx, cl)
			}
			break
		}
	}
	for i := range entries {
		e := &entries[i]
		e.NodeName, e.TenantName, e.Port = n.nodes[e.Node], n.tenants[e.Tenant], n.ports[e.Ifindex]
	}
}

// names are what the kernel does not hold.
type names struct {
	nodes, tenants, ports map[uint32]string
}

// namesFromDPUD asks the dpud whose API listens on a socket; nothing when it does not answer.
func namesFromDPUD(ctx context.Context, socket string) names {
	n := names{map[uint32]string{}, map[uint32]string{}, map[uint32]string{}}
	transport := &http.Transport{DialContext: dialUnix(socket)}
	defer transport.CloseIdleConnections()
	dpud := dpudv1connect.NewDPUServiceClient(&http.Client{Transport: transport}, "http://dpud")
	r, err := dpud.DumpMaps(ctx, connect.NewRequest(&dpudv1.DumpMapsRequest{}))
	if err != nil {
		return n
	}
	for _, e := range r.Msg.GetEntries() {
		learn(n.nodes, e.GetNode(), e.GetNodeName())
		learn(n.tenants, e.GetTenant(), e.GetTenantName())
		learn(n.ports, e.GetIfindex(), e.GetPort())
	}
	return n
}

func (n names) fromController(ctx context.Context, cl *client) {
	if r, err := cl.ListNodes(ctx, connect.NewRequest(&dpudv1.ListNodesRequest{})); err == nil {
		for _, x := range r.Msg.GetNodes() {
			learn(n.nodes, x.GetId(), x.GetName())
		}
	}
	if r, err := cl.ListTenants(ctx, connect.NewRequest(&dpudv1.ListTenantsRequest{})); err == nil {
		for _, x := range r.Msg.GetTenants() {
			learn(n.tenants, x.GetId(), x.GetName())
		}
	}
}

func learn(m map[uint32]string, id uint32, name string) {
	if id != 0 && name != "" {
		m[id] = name
	}
}

// key is the key as people read it.
func (e mapView) key() string {
	if e.NodeName != "" && e.Key == decimal(e.Node) {
		return fmt.Sprintf("%s (%s)", e.Key, e.NodeName)
	}
	return e.Key
}

// value is the value as people read it: the map's own fields, in the order of bpf/types.h.
func (e mapView) value() string {
	named := func(what string, id uint32, name string) string {
		if name == "" {
			return fmt.Sprintf("%s %d", what, id)
		}
		return fmt.Sprintf("%s %d (%s)", what, id, name)
	}
	switch {
	case e.Map == table.NodeTenant.String():
		return named("tenant", e.Tenant, e.TenantName) + ", " + named("node", e.Node, e.NodeName)
	case e.Map == table.NodeState.String():
		return fmt.Sprintf("epoch %d, generation %d, revision %d", e.Epoch, e.Generation, e.Revision)
	case e.VLAN != nil:
		return fmt.Sprintf("%s, %s, vlan %d, mac %s", named("node", e.Node, e.NodeName), named("ifindex", e.Ifindex, e.Port), *e.VLAN, e.MAC)
	}
	return "mac " + e.MAC
}
