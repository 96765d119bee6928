# Runs the parts of a sweep on Ray. Arguments: address, number of parts, folder of results, and the command without --shard.
# A part that is lost with its worker is run again, and takes from the folder what was done of it.
import ctypes, json, os, pathlib, signal, subprocess, sys

import ray

# Ray prints what its workers do; the results of the sweep alone go to standard output.
os.dup2(2, 1)

address, parts, results, *command = sys.argv[1:]
parts, folder = int(parts), pathlib.Path(results)


@ray.remote(num_cpus=1, max_retries=-1)
def part(number):
    # Options come before the jobs, which take all that follows.
    options = ["--results", results, "--json", "--at-a-time", "1", "--shard", f"{number}/{parts}"]
    words = [*command[:3], *options, *command[3:]]
    # A run must not outlive its worker: the part's next worker would repeat what it is doing.
    libc = ctypes.CDLL(None)
    done = subprocess.run(words, capture_output=True, text=True, preexec_fn=lambda: libc.prctl(1, signal.SIGKILL))
    return done.returncode, done.stdout, done.stderr


ray.init(address=address)
waiting, failed = [part.remote(number + 1) for number in range(parts)], []
while waiting:
    (ended,), waiting = ray.wait(waiting)
    try:
        code, out, errors = ray.get(ended)
    except ray.exceptions.RayError as error:
        code, out, errors = 1, "", f"{error}\n"
    if code:
        # A part that was killed says nothing.
        failed.append(errors or f"a part ended with {code}\n")
        continue
    # Where the workers have another file system, their results come this way.
    folder.mkdir(parents=True, exist_ok=True)
    for run in json.loads(out)["runs"]:
        file = folder / (run["digest"] + ".json")
        if not file.exists():
            beside = file.with_suffix(".part")
            beside.write_text(json.dumps(run["result"], indent=2) + "\n")
            os.replace(beside, file)
    print(f"{parts - len(waiting)} of {parts} parts", file=sys.stderr)
for errors in failed:
    print(errors, end="", file=sys.stderr)
sys.exit(1 if failed else 0)
