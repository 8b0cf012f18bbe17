import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;

/** Walks a tree, and prints each file with a sum of its bytes. */
class Sums {
    public static void main(String[] args) throws Exception {
        Path root = Path.of(args[0]);
        try (var paths = Files.walk(root)) {
            for (Path path : paths.filter(Files::isRegularFile).sorted().toList()) {
                byte[] bytes = Files.readAllBytes(path);
                System.out.println(root.relativize(path) + " " + Arrays.hashCode(bytes));
            }
        }
    }
}
