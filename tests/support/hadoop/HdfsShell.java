import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.BlockLocation;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FsShell;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hdfs.DistributedFileSystem;
import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.hdfs.client.HdfsDataInputStream;
import org.apache.hadoop.hdfs.client.HdfsDataOutputStream;
import org.apache.hadoop.hdfs.protocol.HdfsConstants;
import org.apache.hadoop.hdfs.protocol.LocatedBlock;
import org.apache.hadoop.hdfs.tools.DFSAdmin;
import org.apache.hadoop.hdfs.tools.DFSHAAdmin;
import org.apache.hadoop.hdfs.tools.ECAdmin;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.util.Tool;
import org.apache.hadoop.util.ToolRunner;

/**
 * Hadoop's own client, kept running for the tests: one request after another on standard input.
 *
 * <p>A request is a count of fields and the fields, each with its length before it (int, big-endian). An
 * answer is a byte (0: done, 1: failed) and one field. Tools print into the answer.
 */
public final class HdfsShell {
  private static final int LONGEST_WORD = 64 * 1024;

  private final Configuration conf = new HdfsConfiguration();
  private final Map<String, FSDataOutputStream> open = new HashMap<>();
  private DistributedFileSystem lazy;

  public static void main(String[] arguments) throws Exception {
    DataOutputStream answers = new DataOutputStream(new FileOutputStream(FileDescriptor.out));
    System.setOut(System.err);
    DataInputStream requests = new DataInputStream(System.in);
    HdfsShell shell = new HdfsShell();
    UserGroupInformation.setConfiguration(shell.conf);
    String keytab = System.getProperty("shell.keytab");
    if (keytab != null) {
      UserGroupInformation.loginUserFromKeytab(System.getProperty("shell.principal"), keytab);
    }
    while (true) {
      List<byte[]> fields = new ArrayList<>();
      try {
        int count = requests.readInt();
        for (int i = 0; i < count; i++) {
          fields.add(requests.readNBytes(requests.readInt()));
        }
      } catch (EOFException end) {
        System.exit(0);
      }
      byte status = 0;
      byte[] answer;
      try {
        answer = shell.serve(fields).getBytes(StandardCharsets.UTF_8);
      } catch (Throwable failure) {
        status = 1;
        answer = failure.toString().getBytes(StandardCharsets.UTF_8);
      }
      ByteBuffer head = ByteBuffer.allocate(5).put(status).putInt(answer.length);
      answers.write(head.array());
      answers.write(answer);
      answers.flush();
    }
  }

  private String serve(List<byte[]> fields) throws Exception {
    List<String> words = new ArrayList<>();
    for (byte[] field : fields) {
      words.add(field.length > LONGEST_WORD ? "" : new String(field, StandardCharsets.UTF_8));
    }
    byte[] data = fields.get(fields.size() - 1);
    switch (words.get(0)) {
      case "live":
        return "" + files().getDataNodeStats(HdfsConstants.DatanodeReportType.LIVE).length;
      case "put-many":
        putMany(fields);
        return "";
      case "make-directory":
        files().mkdirs(path(words.get(1)));
        return "";
      case "delete":
        return "" + files().delete(path(words.get(1)), true);
      case "rename":
        return "" + files().rename(path(words.get(1)), path(words.get(2)));
      case "truncate":
        return "" + files().truncate(path(words.get(1)), Long.parseLong(words.get(2)));
      case "begin":
        open.put(words.get(1), create(path(words.get(1)), Short.parseShort(words.get(2))));
        return "";
      case "begin-append":
        open.put(words.get(1), files().append(path(words.get(1))));
        return "";
      case "write":
        write(open.get(words.get(1)), words.get(2), data);
        return "";
      case "end":
        open.remove(words.get(1)).close();
        return "";
      case "set-times":
        files().setTimes(path(words.get(1)), Long.parseLong(words.get(2)), -1);
        return "";
      case "hosts":
        return hosts(path(words.get(1)));
      case "blocks":
        return blocks(path(words.get(1)));
      default:
        return tool(words);
    }
  }

  private DistributedFileSystem files() throws IOException {
    if (lazy == null) {
      lazy = (DistributedFileSystem) new Path("/").getFileSystem(conf);
    }
    return lazy;
  }

  private static Path path(String name) {
    return new Path(null, null, name);
  }

  private FSDataOutputStream create(Path path, short replication) throws IOException {
    short copies = replication > 0 ? replication : files().getDefaultReplication(path);
    return files().create(path, true, 64 * 1024, copies, files().getDefaultBlockSize(path));
  }

  private void putMany(List<byte[]> fields) throws Exception {
    ExecutorService pool = Executors.newFixedThreadPool(16);
    List<Future<Void>> done = new ArrayList<>();
    for (int i = 1; i < fields.size(); i += 2) {
      Path path = path(new String(fields.get(i), StandardCharsets.UTF_8));
      byte[] data = fields.get(i + 1);
      done.add(
          pool.submit(
              () -> {
                try (FSDataOutputStream out = create(path, (short) 1)) {
                  out.write(data);
                }
                return null;
              }));
    }
    pool.shutdown();
    for (Future<Void> one : done) {
      one.get();
    }
  }

  private static void write(FSDataOutputStream out, String how, byte[] data) throws IOException {
    out.write(data);
    if (how.equals("length")) {
      ((HdfsDataOutputStream) out).hsync(EnumSet.of(HdfsDataOutputStream.SyncFlag.UPDATE_LENGTH));
    } else if (how.equals("flush")) {
      out.hflush();
    }
  }

  private String hosts(Path path) throws IOException {
    FileStatus status = files().getFileStatus(path);
    StringBuilder lines = new StringBuilder();
    for (BlockLocation block : files().getFileBlockLocations(status, 0, status.getLen())) {
      lines.append(String.join(" ", block.getNames())).append('\n');
    }
    return lines.toString();
  }

  private String blocks(Path path) throws IOException {
    StringBuilder lines = new StringBuilder();
    try (HdfsDataInputStream file = (HdfsDataInputStream) files().open(path)) {
      for (LocatedBlock block : file.getAllBlocks()) {
        lines.append(block.getBlock().getBlockName()).append('\n');
      }
    }
    return lines.toString();
  }

  private String tool(List<String> words) throws Exception {
    Map<String, Tool> tools =
        Map.of(
            "dfs", new FsShell(conf),
            "dfsadmin", new DFSAdmin(conf),
            "haadmin", new DFSHAAdmin(),
            "ec", new ECAdmin(conf));
    Tool tool = tools.get(words.get(0));
    tool.setConf(conf);
    ByteArrayOutputStream said = new ByteArrayOutputStream();
    PrintStream out = System.out;
    PrintStream err = System.err;
    PrintStream both = new PrintStream(said, true, StandardCharsets.UTF_8);
    System.setOut(both);
    System.setErr(both);
    try {
      String[] rest = words.subList(1, words.size()).toArray(new String[0]);
      int status = ToolRunner.run(conf, tool, rest);
      if (status != 0) {
        throw new IOException(Arrays.toString(rest) + " gave " + status + ": " + said);
      }
    } finally {
      System.setOut(out);
      System.setErr(err);
    }
    return said.toString(StandardCharsets.UTF_8);
  }
}
