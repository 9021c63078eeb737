// Hand-overs of the Mutex of etcd's own package concurrency, beside those of tenure. `main ENDPOINTS PREFIX COUNT` prints, for each of
// COUNT hand-overs, the microseconds from the call of Unlock to the return of the other client's Lock.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

const (
	// Seconds.
	ttl = 30
	// For the watch of a waiter, which nothing shows. It begins at a revision that is there already, and etcd gets to such
	// watches every 100 ms.
	watches = 200 * time.Millisecond
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func session(endpoints []string) *concurrency.Session {
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 5 * time.Second})
	check(err)
	session, err := concurrency.NewSession(client, concurrency.WithTTL(ttl))
	check(err)
	return session
}

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: main ENDPOINTS PREFIX COUNT")
		os.Exit(64)
	}
	endpoints, prefix := strings.Split(os.Args[1], ","), os.Args[2]
	count, err := strconv.Atoi(os.Args[3])
	check(err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	sessions := [2]*concurrency.Session{session(endpoints), session(endpoints)}
	for turn := 0; turn < count; turn++ {
		holds := concurrency.NewMutex(sessions[turn%2], prefix)
		waits := concurrency.NewMutex(sessions[1-turn%2], prefix)
		check(holds.Lock(ctx))
		granted := make(chan time.Time)
		go func() {
			check(waits.Lock(ctx))
			granted <- time.Now()
		}()
		for {
			keys, err := sessions[0].Client().Get(ctx, prefix+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
			check(err)
			if keys.Count == 2 {
				break
			}
			time.Sleep(time.Millisecond)
		}
		time.Sleep(watches)
		began := time.Now()
		check(holds.Unlock(ctx))
		fmt.Println((<-granted).Sub(began).Microseconds())
		check(waits.Unlock(ctx))
	}
	for _, session := range sessions {
		check(session.Close())
		check(session.Client().Close())
	}
}
