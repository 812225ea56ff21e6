"""Least squares with few coefficients, none of them negative."""

import itertools
import math
from collections.abc import Sequence


def solve_non_negative(
    products: Sequence[Sequence[float]], targets: Sequence[float]
) -> dict[int, float]:
    """Returns the coefficients, none negative, with the least sum of squared errors.

    Each set of columns is solved by its normal equations; that of all columns is the best if its
    coefficients are not negative.

    Args:
        products: The sums of the products of each two columns.
        targets: The sums of the products of each column with the values.

    Returns:
        The coefficients by column; those of the other columns are 0.
    """
    used = [column for column in range(len(targets)) if products[column][column]]
    best: dict[int, float] = {}
    least = 0.0  # squared error, less that of all zeros
    for count in range(len(used), 0, -1):
        for columns in itertools.combinations(used, count):
            solution = solve(
                [[products[i][j] for j in columns] for i in columns], [targets[i] for i in columns]
            )
            if solution is None or min(solution) < 0:
                continue
            if count == len(used):
                return dict(zip(columns, solution, strict=True))
            # At a solution of the normal equations, the error falls by the product with the target.
            error = -math.fsum(
                value * targets[i] for value, i in zip(solution, columns, strict=True)
            )
            if error < least:
                least, best = error, dict(zip(columns, solution, strict=True))
    return best


def solve(matrix: Sequence[Sequence[float]], targets: Sequence[float]) -> list[float] | None:
    """Solves linear equations by elimination; `None` if they are singular."""
    rows = [[*row, target] for row, target in zip(matrix, targets, strict=True)]
    size = len(rows)
    for column in range(size):
        pivot = max(range(column, size), key=lambda index: abs(rows[index][column]))
        if abs(rows[pivot][column]) < 1e-12 * max(abs(matrix[column][column]), 1e-300):
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for index in range(size):
            if index != column:
                factor = rows[index][column] / rows[column][column]
                rows[index] = [
                    value - factor * other
                    for value, other in zip(rows[index], rows[column], strict=True)
                ]
    return [rows[index][size] / rows[index][index] for index in range(size)]


def inverse_diagonal(matrix: Sequence[Sequence[float]]) -> list[float]:
    """Returns the diagonal of the inverse of a matrix; infinite where it has none."""
    diagonal: list[float] = []
    for index in range(len(matrix)):
        unit = [float(other == index) for other in range(len(matrix))]
        solution = solve(matrix, unit)
        diagonal.append(math.inf if solution is None else solution[index])
    return diagonal
