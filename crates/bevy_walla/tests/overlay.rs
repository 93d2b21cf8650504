//! The overlay without a window: its text, and that it can be hidden.

mod common;

use std::time::Duration;

use bevy_app::prelude::*;
use bevy_ecs::prelude::*;
use bevy_input::ButtonInput;
use bevy_input::keyboard::KeyCode;
use bevy_ui::prelude::*;
use bevy_walla::engine::EngineState;
use bevy_walla::overlay::{OverlayCorner, ToggleWallaOverlay, WallaOverlay, WallaOverlayPlugin};
use bevy_walla::prelude::*;
use bevy_walla::scripted::ScriptedEngine;
use common::*;

/// Two agents; one of them talks endlessly.
fn app() -> App {
    let engine = ScriptedEngine::new(|_, _| "So it was and so it is.".to_owned()).endless();
    app_with_overlay(WallaPlugin::new(&engine))
}

fn app_with_overlay(plugin: WallaPlugin) -> App {
    let overlay = WallaOverlay { refreshes_per_second: 10.0, ..Default::default() };
    let mut app = App::new();
    app.add_plugins((plugin, WallaOverlayPlugin { overlay: Some(overlay) }))
        .init_resource::<ButtonInput<KeyCode>>();
    let odo = app.world_mut().spawn(Agent::persona("Odo")).id();
    app.world_mut().spawn(Agent::persona("Greta"));
    app.world_mut().trigger(Ask::new(odo, "How was it?"));
    for _ in 0..5 {
        app.update();
    }
    app
}

/// Waits until the overlay is due again.
fn refresh(app: &mut App) {
    std::thread::sleep(Duration::from_millis(110));
    app.update();
}

fn lines(app: &mut App) -> Vec<String> {
    app.world_mut().query::<&Text>().iter(app.world()).map(|text| text.0.clone()).collect()
}

/// The lines that take space, without the labels of the histogram's axis.
fn visible_lines(app: &mut App) -> Vec<String> {
    let mut texts = app.world_mut().query::<(&Text, &Node)>();
    let shown = texts.iter(app.world()).filter(|(_, node)| node.display != Display::None);
    shown.map(|(text, _)| text.0.clone()).filter(|text| text.len() > 5).collect()
}

fn is_shown(app: &mut App) -> bool {
    let mut panels = app.world_mut().query::<(&Name, &Node)>();
    let panel = panels.iter(app.world()).find(|(name, _)| name.as_str() == "walla overlay");
    panel.expect("there is a panel").1.display != Display::None
}

#[test]
fn several_engines_have_a_line_each() {
    let [small, large] = [(); 2].map(|()| ScriptedEngine::new(|_, _| "Well.".to_owned()));
    let engines = bevy_walla::engines::EngineSet::new("default", &small).with("large", &large);
    let mut app = app_with_overlay(WallaPlugin::engines(engines));
    refresh(&mut app);
    let shown = visible_lines(&mut app).join("\n");
    assert!(shown.contains("default: 0 replies, "), "{shown}");
    assert!(shown.contains("large: 0 replies, 0 tokens/s"), "{shown}");
    large.set_state(EngineState::Loading { fraction: 0.5 });
    refresh(&mut app);
    let shown = visible_lines(&mut app).join("\n");
    assert!(shown.contains("large: 0 replies, 0 tokens/s, loading 50 %"), "{shown}");
}

#[test]
fn the_overlay_shows_the_number_of_active_agents() {
    let mut app = app();
    refresh(&mut app);
    let lines = lines(&mut app);
    assert!(lines.contains(&"2 agents: 1 talking, 1 silent".to_owned()), "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains("tokens/s")), "{lines:#?}");
    // The axis depends on the frame times, with which `meter.rs` is tested.
    assert!(lines.iter().any(|line| line.ends_with("0 ms") && line.len() < 8), "{lines:#?}");
}

#[test]
fn the_slowest_first_token_is_shown_with_its_parts() {
    let mut app = app();
    refresh(&mut app);
    let before = visible_lines(&mut app);
    assert!(!before.iter().any(|line| line.contains("first token")), "no reply yet: {before:#?}");
    assert!(!before.iter().any(|line| line.contains("prefill")), "no line is empty: {before:#?}");
    // Both end in one frame.
    end_reply(&mut app, usage_with([312_000, 1_000, 90_000, 9_000]));
    end_reply(&mut app, usage_with([2_000, 1_000, 0, 9_000]));
    app.update();
    refresh(&mut app);
    let lines = visible_lines(&mut app);
    let at = lines.iter().position(|line| line == "first token 12 ms   mean 212   max 412");
    let at = at.unwrap_or_else(|| panic!("{lines:#?}"));
    assert_eq!(lines[at + 1], "wait 312, encode 1, prefill 90, decode 9");
    assert!(
        lines[at - 1].contains("tokens/s") && lines[at + 2].starts_with("frame "),
        "{lines:#?}"
    );
}

#[test]
fn background_prefill_is_shown_if_there_is_any() {
    let mut app = app();
    refresh(&mut app);
    let lines = visible_lines(&mut app);
    assert!(!lines.iter().any(|line| line.contains("background")), "{lines:#?}");

    let mut app = app_with_overlay(BackgroundClient::plugin(&echo()));
    refresh(&mut app);
    let lines = visible_lines(&mut app);
    let rate = lines.iter().find_map(|line| line.strip_prefix("background prefill "));
    let rate = rate.and_then(|rate| rate.strip_suffix(" tokens/s")?.parse::<u32>().ok());
    assert!(rate.is_some_and(|rate| rate > 0), "{lines:#?}");
}

#[test]
fn a_key_and_a_message_toggle_it() {
    let mut app = app();
    assert!(is_shown(&mut app));
    app.world_mut().resource_mut::<ButtonInput<KeyCode>>().press(KeyCode::F3);
    app.update();
    assert!(!is_shown(&mut app));
    app.world_mut().resource_mut::<ButtonInput<KeyCode>>().clear();
    app.world_mut().write_message(ToggleWallaOverlay);
    app.update();
    assert!(is_shown(&mut app));
}

#[test]
fn a_hidden_overlay_does_no_work() {
    let mut app = app();
    refresh(&mut app);
    app.world_mut().resource_mut::<WallaOverlay>().visible = false;
    app.update();
    let before = lines(&mut app);
    app.world_mut().spawn(Agent::persona("Pip"));
    refresh(&mut app);
    assert_eq!(before, lines(&mut app));
}

#[test]
fn settings_that_the_game_has_inserted_are_kept() {
    let corner = |overlay: Option<WallaOverlay>| {
        let game = WallaOverlay { corner: OverlayCorner::BottomLeft, ..Default::default() };
        let mut app = App::new();
        app.insert_resource(game).add_plugins(WallaOverlayPlugin { overlay });
        app.world().resource::<WallaOverlay>().corner
    };
    assert_eq!(corner(None), OverlayCorner::BottomLeft);
    assert_eq!(corner(Some(WallaOverlay::default())), OverlayCorner::TopRight);
}
