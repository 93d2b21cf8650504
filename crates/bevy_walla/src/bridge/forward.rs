//! Observers that forward events as messages, so that the collect system has a single input.

use bevy_ecs::entity_disabling::Disabled;
use bevy_ecs::message::Messages;
use bevy_ecs::prelude::*;

use super::EngineBridge;
use crate::agent::Agent;
use crate::ask::{Ask, Cancel, asks_written};
use crate::speech::Speech;

/// An ask is open from here on: systems between this event and the collect system see it.
pub(crate) fn forward_ask(
    ask: On<Ask>,
    mut asks: ResMut<Messages<Ask>>,
    mut speeches: Query<&mut Speech, (With<Agent>, Allow<Disabled>)>,
) {
    open_ask(ask.event().clone(), &mut asks, &mut speeches);
}

pub(super) fn open_ask(
    ask: Ask,
    asks: &mut Messages<Ask>,
    speeches: &mut Query<&mut Speech, (With<Agent>, Allow<Disabled>)>,
) {
    if !ask.options.is_aside()
        && let Ok(mut speech) = speeches.get_mut(ask.agent)
        && speech.is_silent()
    {
        speech.asked(0);
    }
    asks.write(ask);
}

/// Messages of two types have no order relative to each other, so the bridge records it.
pub(crate) fn forward_cancel(
    cancel: On<Cancel>,
    mut cancels: ResMut<Messages<Cancel>>,
    asks: Res<Messages<Ask>>,
    mut bridge: ResMut<EngineBridge>,
) {
    let id = cancels.write(*cancel.event()).id;
    bridge.cancel_requested(id, cancel.agent, asks_written(&asks));
}
