"""Accuracy: shipped parameters judged on measurements that their fit has not seen.

takes     the tables of `data/` and the fits of `precision_time.fit`
gives     pages and data in `benchmarks/results/`, and the accuracy tables between README's markers
knows not how a step is predicted or a parameter is fitted

| part | modules | judges | held out by |
|---|---|---|---|
| steps | `steps`, `step_*`, `anchor_page`, `residuals` | data-parallel steps, blind twins | family, GPU, precision |
| layouts | `layouts` | steps of large models in any layout | model, GPU count, scale, GPU, framework |
| kernels | `kernels` | kernel times | device, dtype class, half of the rows |
| collectives | `collectives` | collective times | GPU type, link generation, network, GPU count |

`python -m benchmarks.accuracy [PART ...]`, from the root of the repository, writes the pages.
"""
