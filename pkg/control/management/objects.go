// Package management is the pure core of the management plane: it decides who gets which node, mints boots,
// answers leases and guards reclaim.
//
// The store is the only truth. The core holds a copy of it ([Core.Learn]); each command reads the copy and
// returns one store transaction ([Txn]) that commits only if everything it read is still as it was, or a
// refusal. Nothing changes until the caller reports the committed objects back through Learn. So a crash, a
// lost answer or a second controller between any two steps costs a retry and never an invariant.
//
// It refuses to free a node before every DPU that could have received its grant has proved that it cleared
// ([Core.Free]); it never takes a timeout, an absence or a deleted inventory object for a proof. It has no
// goroutine, clock, network or disk.
package management

import (
	"fmt"
	"time"

	"dpud/pkg/record"
	"dpud/pkg/site"
)

// Key names an object in the store, as a path: "grant/17".
type Key string

// Object is something that the store holds under a key. Objects are immutable.
type Object interface{ Key() Key }

// The objects of the management plane's store.
type (
	// Meta is the site's identity and the counters that must not run twice. Every change of the inventory
	// puts it, so a transaction conditioned on it sees no other inventory than it read.
	Meta struct {
		SiteID     record.SiteID
		Name       string
		Epoch      record.Epoch
		LastNode   record.NodeID   // highest id given
		LastTenant record.TenantID // highest id given
	}
	// Rack, DPU, Tenant and Node are the inventory.
	Rack struct{ site.Rack }
	// DPU is a DPU of the site file.
	DPU struct{ site.DPU }
	// Tenant is a tenant with its id.
	Tenant struct {
		ID record.TenantID
		site.Tenant
	}
	// Node is a node with its id.
	Node struct {
		ID record.NodeID
		site.Node
	}
	// Services is the register of the shared services.
	Services struct{ record.Services }
	// Grant is a node's register. It outlives the node's inventory: a peer may still hold an older version.
	Grant struct {
		record.Grant
		At time.Time // when this phase began
	}
	// Confirmation is the newest confirmation of a DPU for a node.
	Confirmation struct {
		record.Confirmation
		At time.Time
	}
	// Registration binds a DPU's name to its hardware and counts its boots.
	Registration struct {
		DPU        record.DPU
		HardwareID string
		KernelBoot string
		Instance   string
		Boot       record.Boot
		Address    string
	}
)

// The key of each kind of object. Values of one kind share the part before the slash.
func (o *Meta) Key() Key         { return metaKey }
func (o *Rack) Key() Key         { return rackKey(o.Name) }
func (o *DPU) Key() Key          { return dpuKey(o.Name) }
func (o *Tenant) Key() Key       { return tenantKey(o.Name) }
func (o *Node) Key() Key         { return nodeKey(o.Name) }
func (o *Services) Key() Key     { return servicesKey }
func (o *Grant) Key() Key        { return grantKey(o.Node) }
func (o *Confirmation) Key() Key { return confirmationKey(o.DPU, o.Node) }
func (o *Registration) Key() Key { return registrationKey(o.DPU) }

const (
	metaKey     Key = "site"
	servicesKey Key = "services"
)

func rackKey(name record.Rack) Key     { return Key("rack/" + name) }
func dpuKey(name record.DPU) Key       { return Key("dpu/" + name) }
func tenantKey(name string) Key        { return Key("tenant/" + name) }
func nodeKey(name string) Key          { return Key("node/" + name) }
func grantKey(n record.NodeID) Key     { return Key(fmt.Sprintf("grant/%d", n)) }
func registrationKey(d record.DPU) Key { return Key("registration/" + d) }
func confirmationKey(d record.DPU, n record.NodeID) Key {
	return Key(fmt.Sprintf("confirmation/%s/%d", d, n))
}

// NewObject returns an empty object of the kind that key names, for decoding into; nil for an unknown kind.
func NewObject(key Key) Object {
	kind, _, _ := cutKey(key)
	switch kind {
	case "site":
		return new(Meta)
	case "services":
		return new(Services)
	case "rack":
		return new(Rack)
	case "dpu":
		return new(DPU)
	case "tenant":
		return new(Tenant)
	case "node":
		return new(Node)
	case "grant":
		return new(Grant)
	case "confirmation":
		return new(Confirmation)
	case "registration":
		return new(Registration)
	}
	return nil
}

func cutKey(key Key) (kind, rest string, found bool) {
	for i := range len(key) {
		if key[i] == '/' {
			return string(key[:i]), string(key[i+1:]), true
		}
	}
	return string(key), "", false
}

// Txn is one atomic request to the store: it commits only if every key of If still has the revision given
// (0: the key is absent). A zero Txn asks for nothing.
type Txn struct {
	If     map[Key]int64
	Put    []Object
	Delete []Key
}

// Empty says whether there is nothing to commit.
func (t Txn) Empty() bool { return len(t.Put) == 0 && len(t.Delete) == 0 }
