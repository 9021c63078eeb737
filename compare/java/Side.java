import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.List;
import java.util.concurrent.ThreadLocalRandom;
import org.redisson.Redisson;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * Redisson as the other side of tenure's tests.
 *
 * <pre>
 *   Side LIBRARY URL NAME count   takes turns in this folder until it has a file `enough`; prints how many
 *   Side LIBRARY URL NAME try     asks once and gives up what it got; exits 75 where it is refused
 *   Side LIBRARY URL NAME hold    holds from the file `held` on to the end of its input; prints what the release says
 * </pre>
 *
 * LIBRARY is redisson, an RLock; redisson-fenced, an RFencedLock; redisson-fair, an RFairLock;
 * redisson-write and redisson-read, of an RReadWriteLock; redisson-permits and redisson-semaphore, both permits of an
 * RPermitExpirableSemaphore or an RSemaphore. A turn is what tenure_testkit::Counter calls a visit. If
 * the lock was lost, this program says so and exits 79.
 *
 * -Dtimes=N acquires it so often; -Dwatchdog=MS is the lockWatchdogTimeout, and -Dfairwait=MS the
 * fairLockWaitTimeout. A line of input while it holds has it release once.
 */
public final class Side {
    private static final int REFUSED = 75;
    private static final int LOST = 79;

    /** All there are, so that one alone holds. */
    private static final int PERMITS = 2;

    /** A lock or a semaphore. */
    private interface Held {
        /** Returns the fence, or `-`. */
        String acquire() throws InterruptedException;

        boolean asks();

        void giveUp();
    }

    private record Lock(RLock lock) implements Held {
        public String acquire() {
            if (lock instanceof RFencedLock fenced) {
                return fenced.lockAndGetToken().toString();
            }
            lock.lock();
            return "-";
        }

        public boolean asks() {
            return lock.tryLock();
        }

        public void giveUp() {
            try {
                lock.unlock();
            } catch (IllegalMonitorStateException loss) {
                leave(LOST, "lost: " + loss.getMessage());
            }
        }
    }

    private record Semaphore(RSemaphore semaphore) implements Held {
        public String acquire() throws InterruptedException {
            semaphore.acquire(PERMITS);
            return "-";
        }

        public boolean asks() {
            return semaphore.tryAcquire(PERMITS);
        }

        public void giveUp() {
            semaphore.release(PERMITS);
        }
    }

    private static final class Permits implements Held {
        private final RPermitExpirableSemaphore semaphore;
        private List<String> ids = List.of();

        Permits(RPermitExpirableSemaphore semaphore) {
            this.semaphore = semaphore;
        }

        public String acquire() throws InterruptedException {
            ids = semaphore.acquire(PERMITS);
            return "-";
        }

        public boolean asks() {
            ids = semaphore.tryAcquire(PERMITS);
            return !ids.isEmpty();
        }

        public void giveUp() {
            semaphore.release(ids);
        }
    }

    private final String library;
    private final Held held;

    private Side(String library, RedissonClient client, String name) {
        this.library = library;
        this.held = switch (library) {
            case "redisson" -> new Lock(client.getLock(name));
            case "redisson-fenced" -> new Lock(client.getFencedLock(name));
            case "redisson-fair" -> new Lock(client.getFairLock(name));
            case "redisson-write" -> new Lock(client.getReadWriteLock(name).writeLock());
            case "redisson-read" -> new Lock(client.getReadWriteLock(name).readLock());
            case "redisson-semaphore" -> {
                RSemaphore semaphore = client.getSemaphore(name);
                semaphore.trySetPermits(PERMITS);
                yield new Semaphore(semaphore);
            }
            case "redisson-permits" -> {
                RPermitExpirableSemaphore semaphore = client.getPermitExpirableSemaphore(name);
                semaphore.trySetPermits(PERMITS);
                yield new Permits(semaphore);
            }
            default -> throw new IllegalArgumentException("what is " + library + "?");
        };
    }

    private static void append(String line) throws IOException {
        byte[] bytes = (line + "\n").getBytes(StandardCharsets.UTF_8);
        Files.write(Path.of("log"), bytes, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }

    private static void visit(String id, String token) throws Exception {
        append("enter " + id + " " + token);
        long read = Long.parseLong(Files.readString(Path.of("counter")).trim());
        Thread.sleep(ThreadLocalRandom.current().nextInt(5));
        try (var file = Files.newByteChannel(Path.of("counter"), StandardOpenOption.WRITE)) {
            file.write(ByteBuffer.wrap(String.format("%020d", read + 1).getBytes(StandardCharsets.US_ASCII)));
        }
        append("leave " + id);
    }

    private void count() throws Exception {
        int turns = 0;
        while (!Files.exists(Path.of("enough"))) {
            String token = held.acquire();
            visit(library + "." + ProcessHandle.current().pid() + "." + turns, token);
            turns += 1;
            held.giveUp();
        }
        leave(0, String.valueOf(turns));
    }

    private void hold() throws Exception {
        int times = Integer.getInteger("times", 1);
        for (int i = 0; i < times; i++) {
            held.acquire();
        }
        Files.writeString(Path.of("held"), "held\n");
        for (int read = System.in.read(); read != -1; read = System.in.read()) {
            if (read == '\n') {
                held.giveUp();
                times -= 1;
                Files.writeString(Path.of("held-" + times), "held\n");
            }
        }
        for (; times > 0; times--) {
            held.giveUp();
        }
        leave(0, "released");
    }

    private static void leave(int code, String word) {
        System.out.println(word);
        System.out.flush();
        // Its threads would go on for seconds.
        Runtime.getRuntime().halt(code);
    }

    public static void main(String[] words) throws Exception {
        Config config = new Config();
        // What a holder that dies costs the others.
        config.setLockWatchdogTimeout(Long.getLong("watchdog", 30_000));
        config.setFairLockWaitTimeout(Long.getLong("fairwait", 300_000));
        config.useSingleServer().setAddress(words[1]).setConnectionPoolSize(4).setConnectionMinimumIdleSize(1);
        Side side = new Side(words[0], Redisson.create(config), words[2]);
        switch (words[3]) {
            case "count" -> side.count();
            case "hold" -> side.hold();
            case "try" -> {
                if (!side.held.asks()) {
                    leave(REFUSED, "refused");
                }
                side.held.giveUp();
                leave(0, "released");
            }
            default -> leave(64, "what is " + words[3] + "?");
        }
    }
}
