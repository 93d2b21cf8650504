//! A strip of frames for each mode: host time per frame (upwards) and device time of the same frame
//! (downwards).

use plotters::prelude::*;

use super::{Area, Drawn, GRID, Group, INK, Look, Picture, color, label, limit};
use crate::args::Mode;
use crate::run::FRAMES_SHOWN;

struct Strip {
    mode: Mode,
    /// Host time and device time in milliseconds, and whether the frame began late.
    frames: Vec<(f64, f64, bool)>,
    budget_ms: Option<f64>,
}

pub struct Timeline {
    title: String,
    period_ms: f64,
    strips: Vec<Strip>,
}

/// Heights, in pixels.
const HEAD: i32 = 76;
const STRIP: i32 = 190;

/// Colour of a frame that began more than half a period late.
const STUTTER: RGBColor = RGBColor(213, 94, 0);
const HOST: RGBColor = RGBColor(150, 150, 150);
const DEVICE: RGBColor = RGBColor(86, 180, 233);

impl Timeline {
    pub fn of(group: &Group<'_>) -> Self {
        let strips = group.outcomes.iter().map(|outcome| {
            let cell = &outcome.cell;
            let millis = |time: std::time::Duration| time.as_secs_f64() * 1e3;
            let frames = outcome.frames.iter().take(FRAMES_SHOWN).map(|frame| {
                let late = frame.interval > cell.period() * 3 / 2;
                (millis(frame.work), millis(frame.device), late)
            });
            Strip {
                mode: cell.mode,
                frames: frames.collect(),
                budget_ms: cell.mode.is_governed().then(|| millis(cell.budget)),
            }
        });
        let period = group.outcomes.first().map(|outcome| outcome.cell.period());
        let shown = group.outcomes.iter().map(|o| o.frames.len().min(FRAMES_SHOWN)).max();
        let shown = shown.unwrap_or(0);
        Self {
            title: format!("{shown} frames: {}", group.title()),
            period_ms: period.unwrap_or_default().as_secs_f64() * 1e3,
            strips: strips.collect(),
        }
    }
}

impl Picture for Timeline {
    fn size(&self) -> (u32, u32) {
        (1_300, (HEAD + STRIP * self.strips.len() as i32 + 12) as u32)
    }

    fn draw<DB: DrawingBackend>(&self, area: &Area<'_, DB>, look: Look) -> Drawn<DB> {
        area.fill(&WHITE)?;
        let (head, strips) = area.split_vertically(look.px(HEAD));
        head.draw(&Text::new(self.title.as_str(), look.at(20, 8), look.text(26)))?;
        let key = "up: the frame's work on the host    down: the device's work    dashed: period and budget";
        head.draw(&Text::new(key, look.at(20, 42), look.text(17)))?;
        head.draw(&Rectangle::new([look.at(760, 44), look.at(776, 58)], STUTTER.filled()))?;
        let stutter = "a frame that began more than half a period late";
        head.draw(&Text::new(stutter, look.at(784, 42), look.text(17)))?;
        for (strip, area) in self.strips.iter().zip(strips.split_evenly((self.strips.len(), 1))) {
            self.draw_strip(strip, &area, look)?;
        }
        Ok(())
    }
}

impl Timeline {
    fn draw_strip<DB: DrawingBackend>(
        &self,
        strip: &Strip,
        area: &Area<'_, DB>,
        look: Look,
    ) -> Drawn<DB> {
        // Includes values over the budget. The scale is the same in all strips, so that heights can
        // be compared.
        let budget_ms = self.strips.iter().filter_map(|strip| strip.budget_ms).fold(0.0, f64::max);
        let (up, down) = (1.7 * self.period_ms, (1.3 * budget_ms).max(0.6 * self.period_ms));
        let frames = strip.frames.len().max(1) as f64;
        let mut chart = ChartBuilder::on(area)
            .margin(look.px(4))
            .margin_top(look.px(26))
            .margin_right(look.px(20))
            .y_label_area_size(look.px(72))
            .build_cartesian_2d(0.0..frames, -down..up)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .disable_x_axis()
            .light_line_style(WHITE)
            .bold_line_style(GRID)
            .axis_style(INK)
            .y_labels(5)
            .y_label_formatter(&|ms: &f64| format!("{:.0} ms", ms.abs()))
            .label_style(look.text(15))
            .draw()?;
        chart.draw_series(strip.frames.iter().enumerate().map(|(x, &(work, _, late))| {
            let color = if late { STUTTER } else { HOST };
            Rectangle::new([(x as f64, 0.0), (x as f64 + 0.8, work.min(up))], color.filled())
        }))?;
        let worked = strip.frames.iter().enumerate().filter(|(_, frame)| frame.1 > 0.0);
        chart.draw_series(worked.map(|(x, &(_, device, _))| {
            Rectangle::new([(x as f64, 0.0), (x as f64 + 0.8, -device.min(down))], DEVICE.filled())
        }))?;
        let limits = [Some(self.period_ms), strip.budget_ms.map(|budget| -budget)];
        for ms in limits.into_iter().flatten() {
            limit(&mut chart, ms, 1, look)?;
        }
        let color = color(strip.mode);
        area.draw(&Text::new(label(strip.mode), look.at(92, 2), look.text(18).color(&color)))
    }
}
