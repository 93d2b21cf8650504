//! Requests: bounds, order, cancellation, budgets.

use std::time::{Duration, Instant};

use walla_embed::{EmbedError, Embedder, EmbedderOptions, Purpose, TrySubmitError};

use crate::common::{embed, load};

const MODEL: &str = "bert-mean-f32";

/// An embedder that computes nothing until its budget is raised.
fn paused(options: EmbedderOptions) -> Embedder {
    load(MODEL, EmbedderOptions { budget: Some(Duration::ZERO), ..options })
}

fn some(count: usize) -> Vec<String> {
    (0..count).map(|nth| format!("the door {nth} of the night")).collect()
}

#[test]
fn a_full_queue_returns_the_texts_and_has_room_again() {
    let options = EmbedderOptions { max_texts: 10, max_requests: 3, ..Default::default() };
    let embedder = paused(options);
    let submit = |texts| embedder.try_submit(texts, Purpose::Plain);
    let mut first = submit(some(4)).unwrap();
    let second = submit(some(4)).unwrap();
    assert_eq!(submit(some(4)).unwrap_err(), TrySubmitError::Full(some(4)));
    let third = submit(some(1)).unwrap();
    assert!(matches!(submit(vec![]), Err(TrySubmitError::Full(_))), "three requests");
    let Err(TrySubmitError::TooLarge(back, refused)) = submit(some(11)) else { panic!("11 fit") };
    assert_eq!((back.len(), refused.texts, refused.max_texts), (11, 11, 10));
    assert_eq!(first.try_recv(), None, "the embedder is paused");
    embedder.set_budget(None);
    let [second, third] = [second, third].map(|pending| pending.wait().unwrap().len());
    assert_eq!((second, third), (4, 1));
    assert_eq!(first.try_recv().unwrap().unwrap().len(), 4);
    assert_eq!(first.try_recv(), None, "a result is taken once");
    let deadline = Instant::now() + Duration::from_secs(120);
    while submit(some(10)).is_err() {
        assert!(Instant::now() < deadline, "the room comes back");
        std::thread::yield_now();
    }
}

#[test]
fn bytes_are_bounded_too() {
    let options = EmbedderOptions { max_text_bytes: 100, ..Default::default() };
    let embedder = paused(options);
    let submit = |bytes| embedder.try_submit(vec!["x".repeat(bytes)], Purpose::Plain);
    let _first = submit(60).unwrap();
    assert!(matches!(submit(60), Err(TrySubmitError::Full(_))));
    assert!(matches!(submit(101), Err(TrySubmitError::TooLarge(..))));
    let error = embedder.embed_blocking(vec!["x".repeat(101)], Purpose::Plain).unwrap_err();
    assert!(matches!(error, EmbedError::TooLarge(_)), "{error}");
}

#[test]
fn ten_thousand_texts_pass_a_small_queue_in_order() {
    let options = EmbedderOptions { max_texts: 64, max_requests: 4, ..Default::default() };
    let embedder = load(MODEL, options);
    let found = embed(&embedder, some(10_000));
    assert_eq!(found.len(), 10_000);
    let free = load(MODEL, EmbedderOptions::default());
    for nth in [0, 31, 32, 5_000, 9_999] {
        let alone = embed(&free, vec![format!("the door {nth} of the night")]);
        assert_eq!(found[nth], alone[0], "{nth}");
    }
}

#[test]
fn empty_requests_and_texts_have_results() {
    let embedder = load(MODEL, EmbedderOptions::default());
    assert_eq!(embed(&embedder, vec![]), vec![]);
    let empty = embed(&embedder, ["", " ", "\n\t\u{3000}"].map(String::from).to_vec());
    assert!(empty.iter().all(|found| found.tokens == 2 && found.vector == empty[0].vector));
}

#[test]
fn a_dropped_request_is_left_out_and_others_go_on() {
    let embedder = paused(EmbedderOptions { max_texts: 2_000, ..Default::default() });
    let dropped = embedder.try_submit(some(1_000), Purpose::Plain).unwrap();
    let kept = embedder.try_submit(some(3), Purpose::Plain).unwrap();
    drop(dropped);
    embedder.set_budget(None);
    assert_eq!(kept.wait().unwrap().len(), 3);
}

#[test]
fn frames_grant_the_budget() {
    let embedder = paused(EmbedderOptions::default());
    // Each text takes longer, so it needs a frame at least.
    embedder.set_budget(Some(Duration::from_nanos(100)));
    let mut pending = embedder.try_submit(some(40), Purpose::Plain).unwrap();
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(pending.try_recv(), None, "without a frame nothing is computed");
    let (mut frames, deadline) = (0, Instant::now() + Duration::from_secs(120));
    let found = loop {
        embedder.frame();
        frames += 1;
        if let Some(found) = pending.try_recv() {
            break found.unwrap();
        }
        assert!(Instant::now() < deadline, "the work ends");
        std::thread::sleep(Duration::from_micros(100));
    };
    assert!(frames >= 40, "{frames} frames for 40 texts");
    embedder.set_budget(None);
    assert_eq!(found, embed(&embedder, some(40)));
}

#[test]
fn the_thread_grants_itself_frames_without_a_host() {
    let embedder = paused(EmbedderOptions::default());
    let expected = {
        embedder.set_budget(None);
        embed(&embedder, some(4))
    };
    embedder.set_budget(Some(Duration::from_nanos(100)));
    for time in [Duration::ZERO, Duration::from_millis(5), Duration::MAX] {
        // The thread sleeps before each request.
        std::thread::sleep(Duration::from_millis(20));
        let mut pending = embedder.try_submit(some(4), Purpose::Plain).unwrap();
        embedder.set_frame_time(Some(time));
        if time == Duration::MAX {
            // One frame at most, and each text needs one.
            std::thread::sleep(Duration::from_millis(30));
            assert_eq!(pending.try_recv(), None);
            embedder.set_frame_time(Some(Duration::from_millis(1)));
        }
        assert_eq!(pending.wait().unwrap(), expected);
        embedder.set_frame_time(None);
    }
}
