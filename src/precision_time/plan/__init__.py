"""What to launch: layouts ranked, plans for a deadline or a budget, time limits for schedulers.

takes     a job, a goal and a space to choose in
gives     a `Plan`, ranked `Layouts`, a time limit
knows not how a candidate is predicted (`prediction`), nor how an answer is printed on a terminal (`cli`)

| question | module |
|---|---|
| which layouts of a model are valid? | `layouts` |
| which of them is fastest? | `ranking` |
| what can be rented, at which price? | `offers` |
| which precision holds for how long? | `schedules` |
| which candidates are there? | `space` |
| does a candidate fit, how long does it run? | `assess` |
| which options meet the goal? | `options`, `plan` |
| what can never meet it? | `floors` |
| how long and how dear is a run on spot? | `spot`, `spot_options` |
| what should be measured first? | `worth` |
| how long may the scheduler let it run? | `walltime` |
| is the limit in its script or manifest long enough? | `time_limits` |
"""

from precision_time.plan.goal import Goal
from precision_time.plan.plan import Plan, plan
from precision_time.plan.ranking import Layouts, rank_layouts
from precision_time.plan.space import Space

__all__ = ["Goal", "Layouts", "Plan", "Space", "plan", "rank_layouts"]
