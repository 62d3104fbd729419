package controller

import (
	"context"
	"testing"
	"testing/synctest"
)

// TestSharedRead: whoever asks while a read is under way gets the next one, and those who wait share it.
func TestSharedRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r sharedRead
		reads := int64(0)
		release := make(chan struct{})
		read := func(context.Context) (int64, error) {
			reads++
			n := reads
			<-release
			return n, nil
		}
		var got [3]int64
		ask := func(i int) {
			var err error
			if got[i], err = r.do(t.Context(), read); err != nil {
				t.Error(err)
			}
		}
		go ask(0)
		synctest.Wait()
		go ask(1) // the first read began before these asked
		go ask(2)
		synctest.Wait()
		release <- struct{}{}
		release <- struct{}{}
		synctest.Wait()
		if want := [3]int64{1, 2, 2}; got != want {
			t.Fatalf("reads %v, want %v", got, want)
		}
	})
}
