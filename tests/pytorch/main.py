"""Runs the tests that are named (test_linear, test_linear.Linear.test_chunks), or all, and adds up.

python tests/pytorch/main.py [NAME...]
"""

import pathlib
import sys
import unittest


def failed_tests(result):
    """By name; the parts of a test that fail count once. A test that should fail and does not has failed."""
    tests = [test for test, _ in result.failures + result.errors] + result.unexpectedSuccesses
    return {getattr(test, "test_case", test).id() for test in tests}


def main(names):
    folder = pathlib.Path(__file__).parent
    loader = unittest.defaultTestLoader
    suite = loader.loadTestsFromNames(names) if names else loader.discover(str(folder))
    result = unittest.TextTestRunner(stream=sys.stdout).run(suite)
    failed, skipped = len(failed_tests(result)), len(result.skipped)
    for test, reason in result.skipped:
        print(f"  skipped: {test.id()}: {reason}")
    for name in sorted(failed_tests(result)):
        print(f"  FAILED: {name}")
    print(f"pytorch: {max(0, result.testsRun - failed - skipped)} passed, {failed} failed, {skipped} skipped")
    return 0 if result.testsRun > 0 and failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
