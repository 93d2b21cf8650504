//! Ctrl-C and the signals that end a program.
#![cfg(unix)]

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use walla_doubles::synth::{self, Mixture, Model};

use crate::command::{scratch, walla};

/// Sends SIGINT, like Ctrl-C.
pub fn interrupt(child: &Child) {
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
}

/// Reads until the text ends with `end`, and returns it.
fn read_until(out: &mut ChildStdout, end: &[u8]) -> Vec<u8> {
    let (mut text, mut byte) = (Vec::new(), [0]);
    while !text.ends_with(end) {
        assert_eq!(out.read(&mut byte).unwrap(), 1, "{:?}", String::from_utf8_lossy(&text));
        text.push(byte[0]);
    }
    text
}

/// Ctrl-C during a reply ends the reply; before the next line it ends the program.
#[test]
fn ctrl_c_stops_the_reply_and_not_the_program() {
    const TOKENS: usize = 4_000;
    // Large enough that 4,000 tokens take many seconds.
    let model = Model {
        width: 256,
        layers: 8,
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        hidden: 768,
        vocab: 300,
        context_train: 8_192,
        ..Model::QWEN3_0_6B
    };
    let path = scratch("slow.gguf");
    std::fs::write(&path, synth::write(&model, Mixture::Q8_0, 3, Vec::new()).unwrap()).unwrap();
    let n = TOKENS.to_string();
    let arguments =
        ["chat", &path, "-n", &n, "--context", "8192", "--temperature", "2", "--device", "cpu"];
    let mut command = walla(&arguments);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let (mut input, mut out) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    read_until(&mut out, b"> ");
    input.write_all(b"Tell me a long story.\n").unwrap();
    read_until(&mut out, b" "); // the reply has text
    interrupt(&child);
    let rest = read_until(&mut out, b"\n> ");
    assert!(rest.len() < TOKENS, "{} bytes after Ctrl-C", rest.len());
    interrupt(&child);
    let mut end = Vec::new();
    out.read_to_end(&mut end).unwrap();
    assert!(child.wait().unwrap().success());
    drop(input);
}

/// SIGTERM ends a server as Ctrl-C does.
#[test]
fn a_server_ends_when_the_system_asks() {
    for signal in ["-TERM", "-INT"] {
        let mut command = walla(&["serve", "--port", "0", "--device", "cpu"]);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let ready =
            lines.find_map(|line| Some(line.unwrap()).filter(|its| its.contains("http://")));
        let ready = ready.expect("it starts");
        assert!(ready.ends_with(", device cpu"), "{ready}");
        let kill = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        assert!(kill.success());
        assert!(child.wait().unwrap().success(), "{signal}");
    }
}
