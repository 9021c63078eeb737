import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.concurrent.ThreadLocalRandom;
import org.redisson.Redisson;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
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
 * LIBRARY is redisson, an RLock, or redisson-fenced, an RFencedLock. A turn is what
 * tenure_testkit::Counter calls a visit. If the lock was lost, this program says so and exits 79.
 */
public final class Side {
    private static final int REFUSED = 75;
    private static final int LOST = 79;

    private final String library;
    private final RLock lock;
    /** Of the acquisition, for the log. */
    private String token = "-";

    private Side(String library, RedissonClient client, String name) {
        this.library = library;
        this.lock = library.equals("redisson-fenced") ? client.getFencedLock(name) : client.getLock(name);
    }

    private void acquire() {
        if (lock instanceof RFencedLock fenced) {
            token = fenced.lockAndGetToken().toString();
        } else {
            lock.lock();
        }
    }

    private boolean asks() {
        return lock.tryLock();
    }

    private void giveUp() {
        try {
            lock.unlock();
        } catch (IllegalMonitorStateException loss) {
            leave(LOST, "lost: " + loss.getMessage());
        }
    }

    private static void append(String line) throws IOException {
        byte[] bytes = (line + "\n").getBytes(StandardCharsets.UTF_8);
        Files.write(Path.of("log"), bytes, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }

    private void visit(String id) throws Exception {
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
            acquire();
            visit(library + "." + ProcessHandle.current().pid() + "." + turns);
            turns += 1;
            giveUp();
        }
        leave(0, String.valueOf(turns));
    }

    private void hold() throws Exception {
        Files.writeString(Path.of("held"), "held\n");
        System.in.readAllBytes();
        giveUp();
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
        config.useSingleServer().setAddress(words[1]).setConnectionPoolSize(4).setConnectionMinimumIdleSize(1);
        Side side = new Side(words[0], Redisson.create(config), words[2]);
        switch (words[3]) {
            case "count" -> side.count();
            case "hold" -> {
                side.acquire();
                side.hold();
            }
            case "try" -> {
                if (!side.asks()) {
                    leave(REFUSED, "refused");
                }
                side.giveUp();
                leave(0, "released");
            }
            default -> leave(64, "what is " + words[3] + "?");
        }
    }
}
