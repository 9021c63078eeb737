import io.lettuce.core.RedisURI;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.ConcurrentModificationException;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.provider.redis.spring.RedisLockProvider;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.redisson.Redisson;
import org.redisson.api.RFencedLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.integration.redis.util.RedisLockRegistry;

/**
 * Redisson, Spring Integration, ShedLock and Curator as the other side of tenure's tests.
 *
 * <pre>
 *   Side LIBRARY URL NAME count   takes turns in this folder until it has a file `enough`; prints how many
 *   Side LIBRARY,... URL - count  the same with each library in the folder of its name, at that name
 *   Side LIBRARY URL NAME try     asks once and gives up what it got; exits 75 where it is refused
 *   Side LIBRARY URL NAME hold    holds from the file `held` on to the end of its input; prints what the release says
 * </pre>
 *
 * LIBRARY is redisson, an RLock; redisson-fenced, an RFencedLock; redisson-fair, an RFairLock;
 * redisson-write and redisson-read, of an RReadWriteLock; redisson-permits and redisson-semaphore, both
 * permits of an RPermitExpirableSemaphore or an RSemaphore; spring, a RedisLockRegistry that polls;
 * spring-pub-sub, one that is woken; or shedlock; curator, an InterProcessMutex; curator-write and
 * curator-read, of an InterProcessReadWriteLock. A turn is what tenure_testkit::Counter calls a visit.
 * URL is redis://HOST:PORT, and for Redisson also redis+cluster://HOST:PORT,HOST:PORT,....
 * For Curator it is zookeeper://HOST:PORT/CHROOT. If the lock was lost, this program says so and exits 79.
 *
 * -Dtimes=N acquires it so often; -Dwatchdog=MS is the lockWatchdogTimeout, and -Dfairwait=MS the
 * fairLockWaitTimeout. A line of input while it holds has it release once.
 */
public final class Side {
    private static final int REFUSED = 75;
    private static final int LOST = 79;
    private static final String CLUSTER = "redis+cluster://";
    private static final Duration LEASE = Duration.ofSeconds(30);

    /** A lock of a library, at one name. */
    private interface Lock {
        void acquire() throws Exception;

        /** As acquire, without waiting. */
        boolean asks();

        /** Returns why the lock was not held any more, or null. */
        String release();

        /** Of the acquisition, for the log. */
        default String token() {
            return "-";
        }
    }

    /** One that is a lock of Java's. */
    private record OfJava(java.util.concurrent.locks.Lock lock) implements Lock {
        @Override
        public void acquire() {
            lock.lock();
        }

        @Override
        public boolean asks() {
            return lock.tryLock();
        }

        @Override
        public String release() {
            try {
                lock.unlock();
                return null;
            } catch (IllegalMonitorStateException | ConcurrentModificationException loss) {
                return loss.getMessage();
            }
        }
    }

    private static final class Fenced implements Lock {
        private final RFencedLock lock;
        private String token = "-";

        Fenced(RFencedLock lock) {
            this.lock = lock;
        }

        @Override
        public void acquire() {
            token = lock.lockAndGetToken().toString();
        }

        @Override
        public boolean asks() {
            return lock.tryLock();
        }

        @Override
        public String release() {
            return new OfJava(lock).release();
        }

        @Override
        public String token() {
            return token;
        }
    }

    /** All there are, so that one alone holds. */
    private static final int PERMITS = 2;

    private record Counted(RSemaphore semaphore) implements Lock {
        Counted {
            semaphore.trySetPermits(PERMITS);
        }

        @Override
        public void acquire() throws InterruptedException {
            semaphore.acquire(PERMITS);
        }

        @Override
        public boolean asks() {
            return semaphore.tryAcquire(PERMITS);
        }

        @Override
        public String release() {
            semaphore.release(PERMITS);
            return null;
        }
    }

    private static final class Permits implements Lock {
        private final RPermitExpirableSemaphore semaphore;
        private List<String> ids = List.of();

        Permits(RPermitExpirableSemaphore semaphore) {
            this.semaphore = semaphore;
            semaphore.trySetPermits(PERMITS);
        }

        @Override
        public void acquire() throws InterruptedException {
            ids = semaphore.acquire(PERMITS);
        }

        @Override
        public boolean asks() {
            ids = semaphore.tryAcquire(PERMITS);
            return !ids.isEmpty();
        }

        @Override
        public String release() {
            semaphore.release(ids);
            return null;
        }
    }

    /** It waits for nothing, and does not say whether there was a lock to release. */
    private static final class Shed implements Lock {
        private final RedisLockProvider locks;
        private final String name;
        private Optional<SimpleLock> held = Optional.empty();

        Shed(LettuceConnectionFactory connections, String name) {
            // By itself it deletes the locks of others.
            this.locks = new RedisLockProvider.Builder(connections).safeUpdate(true).build();
            this.name = name;
        }

        @Override
        public void acquire() throws Exception {
            while (!asks()) {
                Thread.sleep(10);
            }
        }

        @Override
        public boolean asks() {
            Duration atLeast = Duration.ofMillis(Long.getLong("atLeast", 0));
            Duration atMost = Duration.ofMillis(Long.getLong("atMost", LEASE.toMillis()));
            held = locks.lock(new LockConfiguration(Instant.now(), name, atMost, atLeast));
            return held.isPresent();
        }

        @Override
        public String release() {
            held.get().unlock();
            return null;
        }
    }

    /** A release that fails says why. */
    private record OfCurator(InterProcessMutex mutex) implements Lock {
        @Override
        public void acquire() throws Exception {
            mutex.acquire();
        }

        @Override
        public boolean asks() {
            try {
                return mutex.acquire(0, TimeUnit.MILLISECONDS);
            } catch (Exception failure) {
                throw new IllegalStateException(failure);
            }
        }

        @Override
        public String release() {
            try {
                mutex.release();
                return null;
            } catch (Exception failure) {
                return failure.toString();
            }
        }
    }

    private static CuratorFramework curator(String url) {
        var retry = new ExponentialBackoffRetry(50, 10);
        var client = CuratorFrameworkFactory.newClient(url.substring("zookeeper://".length()), 4_000, 3_000, retry);
        client.start();
        return client;
    }

    private static Lock lock(String library, String url, String name) {
        return switch (library) {
            case "redisson" -> new OfJava(redisson(url).getLock(name));
            case "redisson-fenced" -> new Fenced(redisson(url).getFencedLock(name));
            case "redisson-fair" -> new OfJava(redisson(url).getFairLock(name));
            case "redisson-write" -> new OfJava(redisson(url).getReadWriteLock(name).writeLock());
            case "redisson-read" -> new OfJava(redisson(url).getReadWriteLock(name).readLock());
            case "redisson-semaphore" -> new Counted(redisson(url).getSemaphore(name));
            case "redisson-permits" -> new Permits(redisson(url).getPermitExpirableSemaphore(name));
            case "spring" -> new OfJava(registry(url).obtain(name));
            case "spring-pub-sub" -> {
                RedisLockRegistry registry = registry(url);
                registry.setRedisLockType(RedisLockRegistry.RedisLockType.PUB_SUB_LOCK);
                yield new OfJava(registry.obtain(name));
            }
            case "curator" -> new OfCurator(new InterProcessMutex(curator(url), "/" + name));
            case "curator-write" -> new OfCurator(new InterProcessReadWriteLock(curator(url), "/" + name).writeLock());
            case "curator-read" -> new OfCurator(new InterProcessReadWriteLock(curator(url), "/" + name).readLock());
            case "shedlock" -> new Shed(connections(url), name);
            default -> throw new IllegalArgumentException(library);
        };
    }

    private static RedissonClient redisson;

    /** One for all locks. */
    private static synchronized RedissonClient redisson(String url) {
        if (redisson != null) {
            return redisson;
        }
        Config config = new Config();
        // What a holder that dies costs the others.
        config.setLockWatchdogTimeout(Long.getLong("watchdog", LEASE.toMillis()));
        config.setFairLockWaitTimeout(Long.getLong("fairwait", 300_000));
        if (url.startsWith(CLUSTER)) {
            var nodes = config.useClusterServers().setMasterConnectionPoolSize(4).setMasterConnectionMinimumIdleSize(1);
            for (String node : url.substring(CLUSTER.length()).split(",")) {
                nodes.addNodeAddress("redis://" + node);
            }
        } else {
            config.useSingleServer().setAddress(url).setConnectionPoolSize(4).setConnectionMinimumIdleSize(1);
        }
        redisson = Redisson.create(config);
        return redisson;
    }

    private static LettuceConnectionFactory connections(String url) {
        RedisURI server = RedisURI.create(url);
        var connections = new LettuceConnectionFactory(server.getHost(), server.getPort());
        connections.afterPropertiesSet();
        connections.start();
        return connections;
    }

    private static RedisLockRegistry registry(String url) {
        return new RedisLockRegistry(connections(url), "app", LEASE.toMillis());
    }

    private static void giveUp(Lock lock) {
        String loss = lock.release();
        if (loss != null) {
            leave(LOST, "lost: " + loss);
        }
    }

    private static void append(Path folder, String line) throws IOException {
        byte[] bytes = (line + "\n").getBytes(StandardCharsets.UTF_8);
        Files.write(folder.resolve("log"), bytes, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }

    private static void visit(Path folder, String id, String token) throws Exception {
        append(folder, "enter " + id + " " + token);
        long read = Long.parseLong(Files.readString(folder.resolve("counter")).trim());
        Thread.sleep(ThreadLocalRandom.current().nextInt(5));
        try (var file = Files.newByteChannel(folder.resolve("counter"), StandardOpenOption.WRITE)) {
            file.write(ByteBuffer.wrap(String.format("%020d", read + 1).getBytes(StandardCharsets.US_ASCII)));
        }
        append(folder, "leave " + id);
    }

    private static int count(String library, Lock lock, Path folder) throws Exception {
        int turns = 0;
        while (!Files.exists(folder.resolve("enough"))) {
            lock.acquire();
            visit(folder, library + "." + ProcessHandle.current().pid() + "." + turns, lock.token());
            turns += 1;
            giveUp(lock);
        }
        return turns;
    }

    /** One line for each: its turns. A program starts slowly, so it does them all. */
    private static String countAll(String[] libraries, String url) throws Exception {
        var turns = new ConcurrentHashMap<String, Integer>();
        var threads = new ArrayList<Thread>();
        for (String library : libraries) {
            Thread thread = new Thread(() -> {
                try {
                    turns.put(library, count(library, lock(library, url, library), Path.of(library)));
                } catch (Exception failure) {
                    failure.printStackTrace();
                    leave(1, library + ": " + failure);
                }
            });
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        return Stream.of(libraries).map(library -> library + " " + turns.get(library)).collect(Collectors.joining("\n"));
    }

    private static void hold(Lock lock) throws Exception {
        int times = Integer.getInteger("times", 1);
        for (int i = 0; i < times; i++) {
            lock.acquire();
        }
        Files.writeString(Path.of("held"), "held\n");
        for (int read = System.in.read(); read != -1; read = System.in.read()) {
            if (read == '\n') {
                giveUp(lock);
                times -= 1;
                Files.writeString(Path.of("held-" + times), "held\n");
            }
        }
        for (; times > 0; times--) {
            giveUp(lock);
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
        if (words[0].contains(",")) {
            leave(0, countAll(words[0].split(","), words[1]));
        }
        Lock lock = lock(words[0], words[1], words[2]);
        switch (words[3]) {
            case "count" -> leave(0, String.valueOf(count(words[0], lock, Path.of(""))));
            case "hold" -> hold(lock);
            case "try" -> {
                if (!lock.asks()) {
                    leave(REFUSED, "refused");
                }
                giveUp(lock);
                leave(0, "released");
            }
            default -> leave(64, "what is " + words[3] + "?");
        }
    }
}
