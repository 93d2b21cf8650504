use std::time::Instant;
use walla_voice::*;
fn main() {
    let frames: u32 = std::env::args().nth(1).unwrap().parse().unwrap();
    let voice = Piper::load("target/voice/en_US-joe-medium.onnx", PiperOptions::default()).unwrap();
    let text = "The guard at the gate asks for your name and your business in the city.";
    for round in 0..4 {
        let options = SpeakOptions {
            piece_frames: frames,
            first_piece_frames: frames.min(16),
            ..SpeakOptions::default()
        };
        let mut u = std::sync::Arc::clone(&voice).begin(text, &options).unwrap();
        let mut out = Vec::new();
        let mut times = Vec::new();
        let mut first = 0.0;
        let begin = Instant::now();
        loop {
            let n = out.len();
            let t = Instant::now();
            let step = u.step(&mut out).unwrap();
            times.push((t.elapsed().as_secs_f64() * 1e3, out.len() - n));
            if first == 0.0 && !out.is_empty() {
                first = begin.elapsed().as_secs_f64() * 1e3;
            }
            if step == Step::Ended {
                break;
            }
        }
        let total: f64 = times.iter().map(|t| t.0).sum();
        let sound = out.len() as f64 / 22050.0;
        if round > 1 {
            println!(
                "{frames}: {:.4} s/s, first {first:.1} ms, longest {:.1}, {:?}",
                total / 1e3 / sound,
                times.iter().map(|t| t.0).fold(0.0, f64::max),
                times.iter().map(|t| (t.0 * 10.0).round() / 10.0).collect::<Vec<_>>()
            );
        }
    }
}
