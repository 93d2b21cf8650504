//! Device time per frame against the budget.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{
    Area, Drawn, GRID, INK, Look, Picture, chart, color, has_device_time, label, legend, limit,
    round_up,
};
use crate::args::Mode;
use crate::report::Results;

struct Bar {
    mode: Mode,
    agents: usize,
    /// p50, p99, p99.9 and the largest, in milliseconds.
    marks: [f64; 4],
}

/// All runs on one device at one rate.
pub struct Budgets {
    title: String,
    budget_ms: f64,
    bars: Vec<Bar>,
}

impl Budgets {
    /// All plots with their file names.
    pub fn all(results: &Results<'_>) -> Vec<(String, Self)> {
        let mut all: Vec<(String, Self)> = Vec::new();
        for outcome in results.outcomes.iter().filter(|outcome| has_device_time(&outcome.cell)) {
            let cell = &outcome.cell;
            let name = format!("budget-{}-{}hz", cell.device.replace(':', ""), cell.rate);
            let device = outcome.times(|frame| frame.device);
            let marks = [0.5, 0.99, 0.999, 1.0].map(|share| device.millis(share));
            let bar = Bar { mode: cell.mode, agents: cell.agents, marks };
            match all.iter_mut().find(|(other, _)| *other == name) {
                Some((_, budgets)) => budgets.bars.push(bar),
                None => {
                    let title =
                        format!("Device time of a frame: {} Hz, {}", cell.rate, cell.device);
                    let budget_ms = cell.budget.as_secs_f64() * 1e3;
                    all.push((name, Self { title, budget_ms, bars: vec![bar] }));
                }
            }
        }
        all
    }

    /// Height of the plot: bars of governed modes are shown in full, others are cut at three
    /// budgets.
    fn top(&self) -> f64 {
        let longest = |bars: &mut dyn Iterator<Item = &Bar>| {
            bars.map(|bar| bar.marks[3]).fold(self.budget_ms * 1.3, f64::max)
        };
        let all = longest(&mut self.bars.iter());
        let governed = longest(&mut self.bars.iter().filter(|bar| bar.mode.is_governed()));
        round_up(all.min(governed.max(3.0 * self.budget_ms)) * 1.02)
    }

    fn modes(&self) -> Vec<Mode> {
        let mut modes = Vec::new();
        for bar in &self.bars {
            if !modes.contains(&bar.mode) {
                modes.push(bar.mode);
            }
        }
        modes
    }

    fn agents(&self) -> Vec<usize> {
        let mut agents: Vec<_> = self.bars.iter().map(|bar| bar.agents).collect();
        agents.sort_unstable();
        agents.dedup();
        agents
    }

    /// Left edge of a bar: bars with the same number of agents are adjacent and centred in their
    /// group.
    fn left(&self, bar: &Bar, agents: &[usize], modes: &[Mode], width: f64) -> f64 {
        let group = agents.iter().position(|&agents| agents == bar.agents).unwrap_or(0);
        let is_beside = |mode: &&Mode| {
            self.bars.iter().any(|other| other.mode == **mode && other.agents == bar.agents)
        };
        let beside: Vec<_> = modes.iter().filter(is_beside).collect();
        let place = beside.iter().position(|&&mode| mode == bar.mode).unwrap_or(0);
        // A bar fills 0.86 of its width.
        group as f64 + 0.5 + (place as f64 + 0.07 - beside.len() as f64 / 2.0) * width
    }
}

impl Picture for Budgets {
    fn size(&self) -> (u32, u32) {
        (1_100, 620)
    }

    fn draw<DB: DrawingBackend>(&self, area: &Area<'_, DB>, look: Look) -> Drawn<DB> {
        area.fill(&WHITE)?;
        let (modes, agents) = (self.modes(), self.agents());
        let top = self.top();
        let groups = agents.len() as f64;
        let mut chart = chart(area, &self.title, (groups, top), look)?;
        let name = |x: &f64| {
            let place = x.floor() as usize;
            let is_middle = (x - x.floor() - 0.5).abs() < 1e-6;
            agents.get(place).filter(|_| is_middle).map_or(String::new(), usize::to_string)
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(WHITE)
            .bold_line_style(GRID)
            .axis_style(INK)
            .x_labels(2 * agents.len() + 1)
            .x_label_formatter(&name)
            .y_labels(9)
            .y_label_formatter(&|ms: &f64| ms.to_string())
            .x_desc(
                "agents (bar: median, line: p99, ticks: p99.9 and the longest, or its number on top; by the frame that saw the results)",
            )
            .y_desc("milliseconds")
            .label_style(look.text(18))
            .axis_desc_style(look.text(18))
            .draw()?;
        let width = 0.8 / modes.len().max(2) as f64;
        let at = |bar: &Bar| self.left(bar, &agents, &modes, width);
        for &mode in &modes {
            let fill = color(mode);
            let bars = || self.bars.iter().filter(|bar| bar.mode == mode);
            chart
                .draw_series(bars().map(|bar| {
                    let x = at(bar);
                    Rectangle::new(
                        [(x, 0.0), (x + width * 0.86, bar.marks[0].min(top))],
                        fill.filled(),
                    )
                }))?
                .label(label(mode))
                .legend(move |(x, y)| {
                    let half = look.px(6);
                    Rectangle::new([(x, y - half), (x + look.px(20), y + half)], fill.filled())
                });
            let thin = fill.stroke_width(look.stroke(3));
            chart.draw_series(bars().map(|bar| {
                let x = at(bar) + width * 0.43;
                PathElement::new([(x, bar.marks[0].min(top)), (x, bar.marks[1].min(top))], thin)
            }))?;
            chart.draw_series(bars().flat_map(|bar| {
                let x = at(bar);
                let ticks = [(0.28, bar.marks[2]), (0.14, bar.marks[3])];
                ticks.into_iter().filter(|tick| tick.1 <= top).map(move |(inset, y)| {
                    let ends = [(x + width * inset, y), (x + width * (0.86 - inset), y)];
                    PathElement::new(ends, thin)
                })
            }))?;
        }
        for bar in self.bars.iter().filter(|bar| bar.marks[3] > top) {
            let x = at(bar) + width * 0.43;
            let note = format!("{:.0} ms", bar.marks[3]);
            let style = look.text(15).pos(Pos::new(HPos::Center, VPos::Top));
            let under = EmptyElement::at((x, top)) + Text::new(note, look.at(0, -20), style);
            chart.draw_series([under])?;
        }
        limit(&mut chart, self.budget_ms, 2, look)?;
        let note = format!("budget {:.2} ms", self.budget_ms);
        let above = EmptyElement::at((0.0, self.budget_ms))
            + Text::new(note, look.at(6, -22), look.text(16));
        chart.draw_series([above])?;
        legend(&mut chart, 30, look)
    }
}
