"""The loops of libraries that block: the very same as of those that are awaited, without `async` and `await`.

A module of TWO_WAYS is written for asyncio. Its twin is compiled from the same file: what is awaited there is called
here; AWAITS is false; and no code checks whether what a `send` returned, `pending`, has to be awaited. What is checked,
and what it costs, is thus the same around every library, and a blocking loop has nothing in it of the other kind.
"""

import ast
import sys
import types
from pathlib import Path
from typing import Any

__all__ = ["AWAITS", "blocking"]

AWAITS = True
"""Whether a module of TWO_WAYS runs as it is written."""

TWO_WAYS = {f"models.{name}" for name in ("ending", "exchanging", "interface", "running", "sending", "streaming")}


def blocking(name: str) -> Any:
    """Returns the twin of a module that is one of TWO_WAYS."""
    twin = f"{name}_blocking"
    if twin not in sys.modules:
        path = Path(__file__).with_name(f"{name.removeprefix('models.')}.py")
        tree = _Blocking().visit(ast.parse(path.read_text()))
        module = sys.modules[twin] = types.ModuleType(twin)
        exec(compile(ast.fix_missing_locations(tree), path, "exec"), module.__dict__)
    return sys.modules[twin]


class _Blocking(ast.NodeTransformer):
    def visit_Await(self, node: ast.Await) -> ast.AST:
        return self.visit(node.value)  # type: ignore[no-any-return]

    def _without_async(self, node: ast.AST) -> ast.AST:
        self.generic_visit(node)
        kind = getattr(ast, type(node).__name__.removeprefix("Async"))
        return ast.copy_location(kind(**dict(ast.iter_fields(node))), node)

    visit_AsyncFunctionDef = visit_AsyncFor = visit_AsyncWith = _without_async  # noqa: N815

    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if ast.unparse(node.test) == "pending is not None" else self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        is_pending = ast.unparse(node.targets[0]) == "pending"
        return ast.copy_location(ast.Expr(node.value), node) if is_pending else node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id == "AWAITS":
            return ast.copy_location(ast.Constant(False), node)
        return ast.copy_location(ast.Name("iter", node.ctx), node) if node.id == "aiter" else node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        if node.module in TWO_WAYS:
            node.module = str(blocking(node.module).__name__)
        return node
