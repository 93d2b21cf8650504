//! NVTX ranges as profilers receive them. Libraries that replace the profilers are compiled here
//! from C, by the compiler that Rust links with.
//!
//! A loaded library stays loaded for the life of a process, so child processes make the ranges.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use walla_trace::{Stage, enter, listen_nvtx};

const NAME: &str = "a_child_process_emits_ranges";

/// Writes one line per range call: thread id, depth, and the name (push) or `-` (pop).
const RECORDER: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <sys/syscall.h>
static __thread int depth;
static int say(const char* name) {
    FILE* file = fopen(getenv("RANGES"), "a");
    fprintf(file, "%ld %d %s\n", (long)syscall(SYS_gettid), depth, name);
    fclose(file);
    return depth;
}
int push(const char* name) { say(name); return depth++; }
int pop(void) { depth--; say("-"); return depth; }
"#;

/// The old library, `nvToolsExt`.
const LIBRARY: &str = r"
int nvtxRangePushA(const char* name) { return push(name); }
int nvtxRangePop(void) { return pop(); }
";

/// A tool that initialises: it accepts the version and writes its functions through the table.
const TOOL: &str = r"
typedef void (*function)(void);
struct callbacks { size_t bytes; int (*table)(int, function***, unsigned*); };
struct version { size_t bytes; unsigned version, reserved; void (*set)(unsigned); };
int InitializeInjectionNvtx2(const void* (*export_table)(unsigned)) {
    const struct version* version = export_table(3);
    const struct callbacks* callbacks = export_table(1);
    function** table = 0;
    unsigned functions = 0;
    if (!version || version->version != 3 || version->bytes < 24) return 0;
    version->set(3);
    if (!callbacks || callbacks->bytes < 16 || export_table(2) || export_table(4)) return 0;
    static const unsigned sizes[] = {0, 16, 9, 15, 7, 16, 7};
    for (int module = 1; module < 7; module++) {
        if (!callbacks->table(module, &table, &functions) || functions != sizes[module]) return 0;
        if (table[0] || table[functions]) return 0;
        for (unsigned i = 1; i < functions; i++) *table[i] = (function)0;
    }
    if (callbacks->table(0, 0, 0) || callbacks->table(7, 0, 0)) return 0;
    if (callbacks->table(-1, 0, 0)) return 0;
    if (!callbacks->table(1, &table, &functions) || functions < 16) return 0;
    *table[9] = (function)push;
    *table[11] = (function)pop;
    return 1;
}
";

/// A tool that refuses to initialise.
const REFUSES: &str = "int InitializeInjectionNvtx2(void* table) { return 0; }";

/// Compiles a library.
fn library(folder: &Path, name: &str, code: &str) -> PathBuf {
    let (source, library) = (folder.join(format!("{name}.c")), folder.join(name));
    std::fs::write(&source, [RECORDER, code].concat()).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source);
    let output = compiler.output().expect("a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    library
}

/// Ranges of a child process with these environment variables, as the recorder wrote them.
fn ranges(folder: &Path, environment: &[(&str, &Path)]) -> Vec<(u64, i32, String)> {
    let log = folder.join("ranges");
    std::fs::write(&log, "").unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", NAME, "--nocapture", "--ignored"]).env("RANGES", &log);
    child.env_remove("NVTX_INJECTION64_PATH").envs(environment.iter().copied());
    let output = child.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(log).unwrap();
    let line = |line: &str| {
        let mut words = line.splitn(3, ' ');
        let thread = words.next().unwrap().parse().unwrap();
        (thread, words.next().unwrap().parse().unwrap(), words.next().unwrap().to_owned())
    };
    text.lines().map(line).collect()
}

/// Asserts that every stage begins and ends on its thread, nested in the enclosing stages.
fn assert_ranges(found: &[(u64, i32, String)]) {
    let mut threads: Vec<u64> = found.iter().map(|(thread, ..)| *thread).collect();
    threads.sort_unstable();
    threads.dedup();
    assert_eq!(threads.len(), 3, "{found:?}");
    let mut of_stages = vec![0; Stage::ALL.len()];
    for thread in threads {
        let mut open: Vec<&str> = Vec::new();
        for (_, depth, name) in found.iter().filter(|(of, ..)| *of == thread) {
            if name == "-" {
                assert!(open.pop().is_some(), "an end without a begin");
            } else {
                let stage = Stage::ALL.iter().position(|stage| stage.name() == name);
                of_stages[stage.unwrap_or_else(|| panic!("{name} is no stage"))] += 1;
                open.push(name);
            }
            assert_eq!(*depth as usize, open.len() - usize::from(name != "-"), "{found:?}");
        }
        assert!(open.is_empty(), "{open:?} never end");
    }
    // Each thread enters every stage once, and `Plan` once more around a panic.
    let expected: Vec<_> =
        Stage::ALL.iter().map(|stage| if *stage == Stage::Plan { 6 } else { 3 }).collect();
    assert_eq!(of_stages, expected);
}

#[test]
#[ignore = "a child process of the other tests"]
fn a_child_process_emits_ranges() {
    drop(enter(Stage::Plan)); // no listener yet
    let begun_before = enter(Stage::Fill);
    listen_nvtx();
    listen_nvtx();
    drop(begun_before);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for pair in Stage::ALL.chunks(2) {
                    let _outer = enter(pair[0]);
                    match pair.get(1) {
                        Some(stage) if *stage == Stage::Launch => enter(*stage).discard(),
                        Some(stage) => drop(enter(*stage)),
                        None => {}
                    }
                }
                let panicked = std::panic::catch_unwind(|| {
                    let _plan = enter(Stage::Plan);
                    std::panic::resume_unwind(Box::new("planned"));
                });
                assert!(panicked.is_err());
            });
        }
    });
}

#[test]
fn a_profiler_that_started_the_program_receives_balanced_ranges() {
    let folder = tempfile::tempdir().unwrap();
    let tool = library(folder.path(), "tool.so", TOOL);
    assert_ranges(&ranges(folder.path(), &[("NVTX_INJECTION64_PATH", &tool)]));
}

#[test]
fn the_old_library_receives_balanced_ranges() {
    let folder = tempfile::tempdir().unwrap();
    library(folder.path(), "libnvToolsExt.so.1", LIBRARY);
    assert_ranges(&ranges(folder.path(), &[("LD_LIBRARY_PATH", folder.path())]));
    // Second name of the library.
    std::fs::rename(
        folder.path().join("libnvToolsExt.so.1"),
        folder.path().join("libnvToolsExt.so"),
    )
    .unwrap();
    assert_ranges(&ranges(folder.path(), &[("LD_LIBRARY_PATH", folder.path())]));
}

#[test]
fn without_an_nvtx_tool_there_are_no_ranges() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing.so");
    assert_eq!(ranges(folder.path(), &[("NVTX_INJECTION64_PATH", &missing)]), []);
    let refuses = library(folder.path(), "refuses.so", REFUSES);
    assert_eq!(ranges(folder.path(), &[("NVTX_INJECTION64_PATH", &refuses)]), []);
    let no_tool = library(folder.path(), "no_tool.so", LIBRARY);
    assert_eq!(ranges(folder.path(), &[("NVTX_INJECTION64_PATH", &no_tool)]), []);
}
